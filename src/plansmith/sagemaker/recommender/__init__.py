"""SageMaker Inference Recommender jobs, which find the instance type that serves a model best."""
