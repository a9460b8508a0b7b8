"""Hugging Face models and tokenizers."""
