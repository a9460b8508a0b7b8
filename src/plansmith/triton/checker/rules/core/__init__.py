"""Triton core rules."""
