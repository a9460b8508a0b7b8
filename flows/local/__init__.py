"""Flows in this process."""
