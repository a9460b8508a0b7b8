"""NVIDIA DALI pipelines that make a model's input of encoded images, as the source's own preprocessing does."""
