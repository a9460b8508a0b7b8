"""What a plan consists of."""
