"""Builds that registries ask for, as flow runs."""
