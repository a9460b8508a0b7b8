"""Commands that look, and say what they see."""
