"""What a person writes: specs, targets, the file of the service."""
