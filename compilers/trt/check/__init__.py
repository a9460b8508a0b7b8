"""A graph parsed and built by TensorRT-RTX on a CPU, before a GPU is kept busy with it."""
