"""Upload of releases to a store, download from it, publication there."""
