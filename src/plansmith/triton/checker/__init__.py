"""Whether Triton will serve a repository, told without Triton: layout, configurations, model files and how they fit."""
