"""The service that hears of models."""
