"""The client of models behind SageMaker endpoints."""
