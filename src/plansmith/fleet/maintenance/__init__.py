"""Maintenance of published releases: periodic verification and garbage collection."""
