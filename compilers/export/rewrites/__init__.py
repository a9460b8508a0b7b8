"""Rewrites of what exporters are known to get wrong: small, named, in force for an export alone."""
