"""Inputs of Hugging Face models."""
