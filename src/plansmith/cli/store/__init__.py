"""Commands on stores and published versions."""
