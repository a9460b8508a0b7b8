"""Triton: model configuration, releases and repository view, the server, and the served check."""
