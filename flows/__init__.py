"""Prefect flows around the compile steps: the only code that imports prefect."""
