"""Verification, retention and removal in a store."""
