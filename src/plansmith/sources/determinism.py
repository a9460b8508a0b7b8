"""Whether a model that is asked the same twice answers the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SHARE = 1e-3
"""Sums in another order differ in the last bits: this is far more, and far less than what lots differ by."""


def changed_output(answer: Mapping[str, NDArray[np.generic]], again: Mapping[str, NDArray[np.generic]]) -> str | None:
    """The first output that differs by more than rounding, in shares of its largest value; None where there is none.

    Only numbers that are not whole are compared: whole ones that are read off them may differ by rounding alone.
    """
    import numpy as np

    for name, array in answer.items():
        if array.dtype.kind != "f":
            continue
        most = _SHARE * float(np.abs(array[np.isfinite(array)]).max(initial=0))
        if again[name].shape != array.shape or not np.allclose(again[name], array, 0, most, equal_nan=True):
            return name
    return None
