"""The server of a load test, as seen from outside: its models, statistics and metrics."""
