"""What the name of an output says about what it holds."""

from __future__ import annotations

import re

_VECTORS = re.compile(r"embed|hidden|pool|feature|representation|vector", re.IGNORECASE)


def names_vectors(output: str) -> bool:
    """Whether an output is called as vectors are, and not as scores are."""
    return _VECTORS.search(output) is not None
