"""Records passed between steps, processes and files."""
