"""When a graph's answer is right: the zoo's own rule, which no exporter has a say in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from plansmith.validation.comparison import cosine_of

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
    return _error(r[finite], c[finite]) if finite.any() else None


def _error(r: NDArray[np.float64], c: NDArray[np.float64]) -> str | None:
    """How far finite numbers are from the reference's, where that is too far."""
    error, scale = float(np.abs(r - c).max()), max(1.0, float(np.abs(r).max()))
    cosine = cosine_of(float(r @ r), float(c @ c), float(r @ c))
    if cosine >= SMALLEST_COSINE and error <= LARGEST_ERROR * scale:
        return None
    return f"cosine {cosine:.6f}, largest error {error:.3g} of {scale:.3g}"


def _form(array: NDArray[np.generic]) -> str:
    return "x".join(map(str, array.shape)) or "scalar"
