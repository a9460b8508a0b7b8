"""Repository checker: whether Triton will serve a repository, found without Triton from its files."""
