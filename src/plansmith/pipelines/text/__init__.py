"""Text around a model."""
