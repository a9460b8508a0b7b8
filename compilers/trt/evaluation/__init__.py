"""How near a plan is to its reference, and how fast."""
