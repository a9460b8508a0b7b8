"""Linter of lowered graphs: finds what TensorRT would refuse, or not fuse."""
