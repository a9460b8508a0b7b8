"""Commands that make something of a model or a spec."""
