"""INT8 and FP8 quantization."""
