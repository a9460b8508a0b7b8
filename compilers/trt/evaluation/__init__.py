"""Evaluation of plans: accuracy against the reference, and speed."""
