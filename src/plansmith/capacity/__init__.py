"""Capacity measurement: how many copies of models fit into the memory of a Triton server."""
