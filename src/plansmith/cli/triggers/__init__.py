"""`plansmith triggers`: serve, watch and inbox."""
