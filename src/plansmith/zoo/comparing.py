"""When a graph's answer is right: the zoo's own rule, which no exporter has a say in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]

SMALLEST_COSINE = 0.9999
LARGEST_ERROR = 1e-3
"""Of the largest value of the reference, or of 1 where that is smaller."""


def difference(reference: Arrays, answer: Arrays) -> str | None:
    """The first output that is not right, in words; None where all are.

    Every element counts, those at padded positions too; whole numbers and flags have to be equal, and what is not
    finite has to stand at the same places.
    """
    missing = [name for name in reference if name not in answer]
    if missing:
        return f"there is no output {', '.join(missing)}"
    for name, expected in reference.items():
        problem = _difference(expected, answer[name])
        if problem:
            return f"{name}: {problem}"
    return None


def _difference(expected: NDArray[np.generic], found: NDArray[np.generic]) -> str | None:
    if expected.shape != found.shape:
        return f"shape is {_form(found)}, PyTorch's {_form(expected)}"
    if expected.dtype.kind in "iub":
        unequal = int(np.sum(expected != found))
        return f"{unequal} of {expected.size} elements differ" if unequal else None
    r, c = expected.astype(np.float64).ravel(), found.astype(np.float64).ravel()
    finite = np.isfinite(r)
    if not np.array_equal(finite, np.isfinite(c)) or not np.array_equal(r[~finite], c[~finite], equal_nan=True):
        return "NaN or Inf at other places than PyTorch's"
    r, c = r[finite], c[finite]
    if not r.size:
        return None
    error, scale = float(np.abs(r - c).max()), max(1.0, float(np.abs(r).max()))
    lengths = float(np.linalg.norm(r)), float(np.linalg.norm(c))
    cosine = float(r @ c) / (lengths[0] * lengths[1]) if all(lengths) else float(lengths[0] == lengths[1])
    if cosine < SMALLEST_COSINE:
        return f"cosine {cosine:.6f}, largest error {error:.3g} of {scale:.3g}"
    if error > LARGEST_ERROR * scale:
        return f"largest error {error:.3g} of {scale:.3g}, cosine {cosine:.6f}"
    return None


def _form(array: NDArray[np.generic]) -> str:
    return "x".join(map(str, array.shape)) or "scalar"
