"""Inference command for served models."""
