"""What turns a model into a graph, a graph into a lower precision, and that into an engine."""
