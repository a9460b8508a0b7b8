"""The result of a search in sentences and as a page."""
