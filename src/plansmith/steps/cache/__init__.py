"""Step cache: results of steps, on this machine and shared, and their cache keys."""
