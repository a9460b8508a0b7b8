"""The cache of step results, on this machine and shared, and the keys of its entries."""
