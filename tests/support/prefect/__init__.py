"""Prefect's server, its database and workers, and small models to compile there."""
