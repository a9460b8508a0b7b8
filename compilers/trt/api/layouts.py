"""Arrays as the formats of TensorRT lay them out in memory, and back.

The formats are those of `nvinfer1::TensorFormat`
(https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/c-api/namespacenvinfer1.html): channels last, or in
groups whose last one is filled up with zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from plansmith.errors import EngineError

# Axis of the channels from the end, and how many of them lie together; 0 where all do, in their own number.
_GROUPED = {"CHW2": (3, 2), "CHW4": (3, 4), "CHW16": (3, 16), "CHW32": (3, 32), "CDHW32": (4, 32)}
_LAST = {"HWC": (3, 1), "HWC8": (3, 8), "HWC16": (3, 16), "DHWC": (4, 1), "DHWC8": (4, 8)}


def packed(array: npt.NDArray[Any], form: str) -> npt.NDArray[Any]:
    """An array in a format (its name in `tensorrt.TensorFormat`), contiguous.

    Raises:
        EngineError: there is no such array, or the format is one of an accelerator that is not used.
    """
    if form == "LINEAR":
        return np.ascontiguousarray(array)
    axis, group = _channels(array.shape, form)
    filled = [(0, 0)] * array.ndim
    filled[axis] = (0, -array.shape[axis] % group)
    whole = np.pad(array, filled)
    if form in _LAST:
        return np.ascontiguousarray(np.moveaxis(whole, axis, -1))
    split = whole.reshape(*whole.shape[:axis], whole.shape[axis] // group, group, *whole.shape[axis + 1 :])
    return np.ascontiguousarray(np.moveaxis(split, axis + 1, -1))


def unpacked(flat: npt.NDArray[Any], shape: Sequence[int], form: str) -> npt.NDArray[Any]:
    """The array of a shape whose values in memory are these, perhaps followed by others; of its own memory.

    Raises:
        EngineError: as for `packed`.
    """
    if form == "LINEAR":
        return flat[: math.prod(shape)].reshape(shape).copy()
    axis, group = _channels(tuple(shape), form)
    groups = -(-shape[axis] // group)
    before, after = shape[:axis], shape[axis + 1 :]
    if form in _LAST:
        lying = (*before, *after, groups * group)
        whole = np.moveaxis(flat[: math.prod(lying)].reshape(lying), -1, axis)
    else:
        lying = (*before, groups, *after, group)
        split = np.moveaxis(flat[: math.prod(lying)].reshape(lying), -1, axis + 1)
        whole = split.reshape(*before, groups * group, *after)
    return np.take(whole, range(shape[axis]), axis=axis)


def _channels(shape: tuple[int, ...], form: str) -> tuple[int, int]:
    """The axis of the channels, and how many lie together."""
    from_end, group = (_GROUPED | _LAST).get(form, (0, 0))
    if not group or len(shape) < from_end:
        raise EngineError(
            f"an input or output of {len(shape)} dimensions in the format {form} cannot be filled or read here",
            remedy="leave it out of tensorrt: formats",
        )
    return len(shape) - from_end, group
