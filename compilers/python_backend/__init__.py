"""A PyTorch model for Triton's Python backend: the folder that is served, and the module that answers from it."""
