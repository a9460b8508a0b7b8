"""Validation: comparison with the reference and the accuracy gate; independent of the engine."""
