"""TensorRT plans: build, contents and evaluation."""
