"""Checker rules."""
