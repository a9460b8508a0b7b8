"""Runs: submitted, followed, ended."""
