"""Amazon SageMaker: archives of releases that its Triton containers load, and endpoints."""
