"""A repository that follows a store."""
