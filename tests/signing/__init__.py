"""Signed releases."""
