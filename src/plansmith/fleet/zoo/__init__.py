"""A list of models, each compiled with random weights in a process of its own and judged beside PyTorch."""
