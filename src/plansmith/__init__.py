"""plansmith: from a Hugging Face or timm model to a validated, versioned Triton model repository."""

__version__ = "0.1.0"
