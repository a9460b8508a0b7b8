"""Comparison: the same models by several engines, with and without dynamic batching, and what serving costs."""
