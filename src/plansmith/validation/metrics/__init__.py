"""Measures of agreement, by what a model gives."""
