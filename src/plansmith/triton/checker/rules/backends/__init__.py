"""Rules of backends."""
