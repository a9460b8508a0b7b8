"""NVIDIA DALI pipelines that preprocess encoded images like the source's own preprocessing."""
