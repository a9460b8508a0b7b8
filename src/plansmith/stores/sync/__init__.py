"""Sync: a repository that follows a store."""
