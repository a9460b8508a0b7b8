"""Comparison with the reference, and the gate; independent of the engine."""
