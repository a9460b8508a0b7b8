"""`plansmith loadtest`."""
