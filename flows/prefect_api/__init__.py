"""Calls of Prefect's API, repeated while it is unavailable."""
