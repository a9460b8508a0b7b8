"""Tests that go through all steps."""
