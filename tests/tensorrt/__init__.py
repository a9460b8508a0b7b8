"""Plans of TensorRT: what builds them, and what is told of them."""
