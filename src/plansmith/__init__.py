"""plansmith: compiles Hugging Face and timm models into validated, versioned Triton model repositories."""

__version__ = "0.1.0"
