"""Deployments of endpoints against SageMaker's control plane."""
