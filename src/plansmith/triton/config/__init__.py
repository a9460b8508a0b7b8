"""The configuration of a model, as Triton reads it."""
