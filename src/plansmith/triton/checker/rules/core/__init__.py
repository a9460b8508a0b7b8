"""Rules of Triton's core."""
