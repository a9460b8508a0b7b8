"""The rules of the checker."""
