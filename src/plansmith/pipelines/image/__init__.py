"""Image pre- and postprocessing."""
