"""Weights as INT8: symmetric, a scale per output channel or per row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SMALLEST_SCALE = float(np.finfo(np.float32).tiny) * 1e4


def scales(weight: NDArray[np.floating], axis: int, *, bits: int = 8) -> NDArray[np.float32]:
    """One scale a channel of this axis, such that its largest magnitude becomes the largest integer.

    Args:
        weight: any number of axes.
        axis: the one that numbers the channels.
        bits: how many bits are used; 8 means -127 to 127.
    """
    others = tuple(i for i in range(weight.ndim) if i != axis)
    largest = np.abs(weight).max(axis=others)
    found = largest / (2 ** (bits - 1) - 1)
    # A channel of zeros: any scale gives zeros back, and 1 cannot overflow what divides by it.
    positive: NDArray[np.float32] = np.where(found > _SMALLEST_SCALE, found, 1.0).astype(np.float32)
    return positive


def quantise(weight: NDArray[np.floating], scale: NDArray[np.float32], axis: int) -> NDArray[np.int8]:
    """Round to the nearest integer of each channel's scale; ties to even, as QuantizeLinear does."""
    shape = [1] * weight.ndim
    shape[axis] = -1
    integers: NDArray[np.int8] = np.rint(weight / scale.reshape(shape)).clip(-128, 127).astype(np.int8)
    return integers


def rounded(weight: NDArray[np.float32], axis: int, *, bits: int = 8) -> NDArray[np.float32]:
    """What comes back from INT8."""
    scale = scales(weight, axis, bits=bits)
    shape = [1] * weight.ndim
    shape[axis] = -1
    scale = scale.reshape(shape)
    back: NDArray[np.float32] = np.rint(weight / scale) * scale
    return back
