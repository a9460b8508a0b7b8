"""Audio pre- and postprocessing."""
