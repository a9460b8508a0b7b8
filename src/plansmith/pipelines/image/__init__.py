"""Images around a model."""
