"""The requests that a load test sends: their inputs, and their encoded bodies."""
