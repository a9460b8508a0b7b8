"""Stand-ins for TensorRT's programs and logs."""
