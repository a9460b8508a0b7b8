"""The file of an endpoint, and what follows from it without AWS."""
