"""Releases on Amazon SageMaker: archives that its Triton containers load, and endpoints."""
