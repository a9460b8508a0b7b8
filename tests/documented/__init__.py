"""Every session that a page shows, run."""
