"""`plansmith tune`: the search for the configuration that serves a model best."""
