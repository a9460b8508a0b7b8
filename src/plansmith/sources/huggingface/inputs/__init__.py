"""What a Hugging Face model takes."""
