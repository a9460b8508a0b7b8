"""Text pre- and postprocessing."""
