"""Diagnosis of this machine: checks turn raw facts from child processes and the kernel into findings."""
