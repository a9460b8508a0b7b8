"""`plansmith capacity`."""
