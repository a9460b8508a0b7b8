"""Servers of the places that models come from, on 127.0.0.1."""
