"""Models and tokenizers of Hugging Face."""
