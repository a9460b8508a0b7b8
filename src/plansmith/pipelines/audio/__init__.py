"""Sound around a model."""
