"""Export: from a model to an ONNX graph."""
