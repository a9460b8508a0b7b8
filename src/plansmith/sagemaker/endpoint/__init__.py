"""Endpoint specification as the user writes it, and what follows from it without calling AWS."""
