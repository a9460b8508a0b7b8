"""Models loaded into and taken out of a Triton that runs."""
