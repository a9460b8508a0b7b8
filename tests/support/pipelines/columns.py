"""Columns of raw inputs, as clients send them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def column(*texts: str | bytes) -> NDArray[Any]:
    """Texts as they travel: [batch, 1] of bytes."""
    array = np.empty((len(texts), 1), object)
    array[:, 0] = [text if isinstance(text, bytes) else text.encode() for text in texts]
    return array
