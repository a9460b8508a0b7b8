"""Capacity: copies of models on a Triton until its memory is used."""
