"""Targets: serving runtimes and their versions."""
