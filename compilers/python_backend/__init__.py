"""PyTorch models for Triton's Python backend: the served folder, and the module that answers from it."""
