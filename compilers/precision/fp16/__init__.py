"""FP16 and BF16."""
