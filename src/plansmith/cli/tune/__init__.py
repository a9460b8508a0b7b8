"""`plansmith tune`."""
