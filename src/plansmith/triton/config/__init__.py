"""Triton model configuration."""
