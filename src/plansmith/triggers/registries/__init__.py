"""Model registries: their events, the rules that start builds, and the requests to them."""
