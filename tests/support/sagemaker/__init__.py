"""Releases as SageMaker serves them."""
