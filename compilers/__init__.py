"""Compilers: from a model to a graph, to a graph of lower precision, and to an engine."""
