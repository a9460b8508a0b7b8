"""Metrics of endpoints."""
