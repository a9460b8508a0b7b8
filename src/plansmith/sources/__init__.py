"""Where models come from. `config.source_reference` reads what a person typed; each other module serves one kind."""
