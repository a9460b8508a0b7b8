"""Where models come from. `reference.py` reads what a person typed; each other module serves one kind."""
