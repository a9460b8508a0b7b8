"""The linter of lowered graphs: what TensorRT would refuse, or not fuse."""
