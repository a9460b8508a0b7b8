"""Modules of PyTorch as files: an exported program, or a pickle of the module."""
