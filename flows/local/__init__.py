"""Local flows, which run in this process."""
