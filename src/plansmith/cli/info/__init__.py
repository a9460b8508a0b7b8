"""Read-only information commands."""
