"""Archives for SageMaker: their bytes, their layout, and how a container starts with them."""
