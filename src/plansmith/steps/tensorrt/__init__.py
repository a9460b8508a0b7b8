"""TensorRT plan steps."""
