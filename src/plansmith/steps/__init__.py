"""Compile steps, their order, and their runner."""
