"""Environments that Python models bring with them: wheels for the target's Python, in an archive."""
