"""Clients for models behind Amazon SageMaker endpoints, through AWS or directly to a Triton front end."""
