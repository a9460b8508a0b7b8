"""Comparison of engines on the same models, with and without dynamic batching, and of serving costs."""
