"""Lowering: converts FP32 graphs to FP16, BF16, INT8 or FP8, ONNX to ONNX, before an engine is built."""
