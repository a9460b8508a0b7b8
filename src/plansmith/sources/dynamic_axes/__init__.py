"""Dynamic axes: found by search, probed, narrowed to what the model takes."""
