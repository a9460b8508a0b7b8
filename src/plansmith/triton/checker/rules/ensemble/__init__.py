"""Ensemble rules."""
