"""Triton server: installation, process, model control, served check."""
