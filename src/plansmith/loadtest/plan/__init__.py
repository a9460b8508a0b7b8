"""What a load test does, as a person writes it."""
