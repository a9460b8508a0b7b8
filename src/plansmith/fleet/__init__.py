"""Fleets: which specs of a folder are stale and why, and the results of building them."""
