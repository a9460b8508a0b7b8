"""Model sources. `config.source_reference` parses the user's reference; each other module handles one kind."""
