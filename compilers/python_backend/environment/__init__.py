"""Packed environments of Python models: wheels for the target's Python, in an archive."""
