"""INT8 and FP8."""
