"""Provenance: the inputs of a release, and the runs."""
