"""Pipelines: pre- and postprocessing of a model on Triton, and how the parts form one ensemble."""
