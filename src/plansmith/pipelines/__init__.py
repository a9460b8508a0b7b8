"""What stands around a model on Triton: the parts before and behind it, and how they become one ensemble."""
