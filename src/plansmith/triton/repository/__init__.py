"""Triton model repository."""
