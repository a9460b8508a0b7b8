"""Many models at once: which of a folder of specs are stale and why, and what comes of building those."""
