"""Trials: measurements of configurations under load, and their history."""
