"""Lowering: FP32 graphs become FP16, BF16, INT8 or FP8 ones, ONNX to ONNX, before any engine is built."""
