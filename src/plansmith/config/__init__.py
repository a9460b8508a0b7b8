"""Configuration files: specs, targets and the service file."""
