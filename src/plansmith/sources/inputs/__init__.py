"""Inputs that are drawn, or made of samples."""
