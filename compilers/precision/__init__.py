"""Lowering: FP32 graphs become FP16, BF16 or INT8 ones, ONNX to ONNX, before any engine is built."""
