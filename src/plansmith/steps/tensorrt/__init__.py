"""The steps of a TensorRT plan."""
