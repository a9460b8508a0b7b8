"""From a model to an ONNX graph."""
