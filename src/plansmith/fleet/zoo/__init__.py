"""Model zoo: a list of models, each compiled with random weights in its own process and compared with PyTorch."""
