"""Prefect API calls, retried while the API is unavailable."""
