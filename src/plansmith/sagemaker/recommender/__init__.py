"""Jobs of SageMaker Inference Recommender: which instance type serves a model best."""
