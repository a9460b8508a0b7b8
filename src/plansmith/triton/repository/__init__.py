"""The repository that Triton reads."""
