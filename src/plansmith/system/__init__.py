"""Files, locks, processes, memory, GPUs, digests and URLs."""
