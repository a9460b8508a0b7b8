"""Stores, releases in them, and those who publish and read at once."""
