"""Backend rules."""
