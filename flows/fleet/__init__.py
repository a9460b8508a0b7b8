"""A fleet on work pools."""
