"""Kills at each boundary, crowds, and what must be whole afterwards."""
