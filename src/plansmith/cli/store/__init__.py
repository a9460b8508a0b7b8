"""Commands about stores and published versions."""
