"""The records that travel between steps, processes and files."""
