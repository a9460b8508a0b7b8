"""Prefect flows around the steps: the only code that imports prefect."""
