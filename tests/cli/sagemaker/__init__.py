"""`plansmith sagemaker` as a person types it."""
