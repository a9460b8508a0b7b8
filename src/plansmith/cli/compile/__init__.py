"""Commands that compile a model or write a spec."""
