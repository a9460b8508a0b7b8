"""Real inputs and labels: read, sampled and split; and plansmith's own inputs where the user supplies none."""
