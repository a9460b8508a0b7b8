"""TensorRT plans: how they are built, what they consist of, how they are judged."""
