"""Models that break one rule each."""
