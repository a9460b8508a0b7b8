"""`plansmith sagemaker`."""
