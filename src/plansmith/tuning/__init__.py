"""`plansmith tune`: searches for the configuration that serves a model best."""
