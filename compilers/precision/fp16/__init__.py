"""FP16 and BF16 lowering."""
