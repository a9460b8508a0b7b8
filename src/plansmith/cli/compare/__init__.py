"""`plansmith compare`."""
