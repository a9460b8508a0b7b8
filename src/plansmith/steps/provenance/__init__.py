"""What a release was made of, and what was run."""
