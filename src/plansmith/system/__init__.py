"""System utilities: files, locks, processes, memory, GPUs, digests and URLs."""
