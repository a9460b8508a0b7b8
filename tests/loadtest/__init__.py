"""Load tests: plans, loops, endings, saturation, and the command on a real Triton."""
