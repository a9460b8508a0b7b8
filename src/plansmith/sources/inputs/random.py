"""Inputs drawn at random, for a model that nothing describes: by the names, dtypes and ranks of its inputs."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from plansmith.config.spec import InputSpec
from plansmith.data import synthetic
from plansmith.data.columns import Takes
from plansmith.records.model import BATCH, BATCH_RANGE, AxisRange, Dim, Tensor
from plansmith.sources.inputs.collate import encode_arrays
from plansmith.sources.loaded_model import InputPlan

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SEQUENCE_LIKE = re.compile(r"seq|len|tok|time|text|word", re.IGNORECASE)
_MASK_LIKE = re.compile(r"mask", re.IGNORECASE)
_POSITION_LIKE = re.compile(r"position", re.IGNORECASE)
_TEXT_LIKE = re.compile(r"ids?$|mask|token|segment", re.IGNORECASE)

_SEQUENCE_RANGE = AxisRange(min=1, opt=128, max=512)
_SIDE_RANGE = AxisRange(min=64, opt=224, max=448)
_OTHER_RANGE = AxisRange(min=1, opt=16, max=64)
_LARGEST_INTEGER = 7
_SMALLEST_SIDE = 16


def plan_drawn(
    tensors: Sequence[Tensor], given: Mapping[str, InputSpec], bounds: Mapping[str, int] | None = None
) -> InputPlan:
    """Inputs for tensors of which no more is known.

    Args:
        tensors: names, dtypes and dims, with a name for every dim that moves.
        given: what the spec says about their values, by input.
        bounds: for inputs that are indices: one more than the largest value that they may have.
    """
    kinds = {t.name: _kind(t, given.get(t.name, InputSpec()), bounds or {}) for t in tensors}
    sides = {d for t in tensors if kinds[t.name] == "drawn images" for d in _sides(t) if isinstance(d, str)}
    axes = {d: default_range(d, is_side=d in sides) for t in tensors for d in t.dims if isinstance(d, str)}
    masks = [t for t in tensors if kinds[t.name] == "padding masks" and len(t.dims) == 2]
    mask = next((t.name for t in masks if t.name == "attention_mask" or given.get(t.name, InputSpec()).mask), None)

    def make(sizes: Mapping[str, int]) -> dict[str, NDArray[np.generic]]:
        return {
            t.name: _draw(t, kinds[t.name], given.get(t.name, InputSpec()), (bounds or {}).get(t.name), sizes)
            for t in tensors
        }

    mask = mask or (masks[0].name if len(masks) == 1 else None)
    return InputPlan(
        tensors=tuple(tensors),
        axes=axes,
        limits={},
        mask_input=mask,
        make=make,
        data=" and ".join(sorted(set(kinds.values()), key=lambda kind: (not kind.startswith("random"), kind))),
        takes=Takes((), tuple(t.name for t in tensors), optional=() if mask is None else (mask,)),
        encode=lambda samples, sizes, _: encode_arrays(tensors, mask, samples, sizes),
        guessed=True,
    )


def default_range(axis: str, *, is_side: bool = False) -> AxisRange:
    """The range of an axis of which only the name is known; `is_side`: the height or width of images."""
    if axis == BATCH:
        return BATCH_RANGE
    if is_side:
        return _SIDE_RANGE
    return _SEQUENCE_RANGE if _SEQUENCE_LIKE.search(axis) else _OTHER_RANGE


def is_text(tensor: Tensor) -> bool:
    """Whether an input looks like token ids, or like what stands beside them."""
    return len(tensor.dims) == 2 and tensor.dtype in {"int32", "int64"} and bool(_TEXT_LIKE.search(tensor.name))


def _kind(tensor: Tensor, given: InputSpec, bounds: Mapping[str, int]) -> str:
    """What an input is filled with, in words."""
    if given.mask or (given.low is None and _MASK_LIKE.search(tensor.name) and len(tensor.dims) > 1):
        return "padding masks"
    if given.low is not None:
        return "random values"
    if tensor.name in bounds or is_text(tensor):
        return "positions" if _POSITION_LIKE.search(tensor.name) else "random ids"
    sides = _sides(tensor)
    if sides and all(isinstance(d, str) or d >= _SMALLEST_SIDE for d in sides):
        return "drawn images"
    return "random values"


def _sides(tensor: Tensor) -> tuple[Dim, ...]:
    """Height and width, where an input can be images."""
    if len(tensor.dims) != 4 or tensor.dtype not in {"float32", "float64", "uint8"}:
        return ()
    if tensor.dims[1] in synthetic.CHANNELS:
        return tensor.dims[2:]
    return tensor.dims[1:3] if tensor.dims[3] in synthetic.CHANNELS else ()


def _draw(
    tensor: Tensor, kind: str, given: InputSpec, bound: int | None, sizes: Mapping[str, int]
) -> NDArray[np.generic]:
    """The values of one input: the same ones for the same sizes."""
    import numpy as np

    shape = tuple(sizes[d] if isinstance(d, str) else d for d in tensor.dims)
    seed = [zlib.crc32(tensor.name.encode()), *shape]
    if kind == "padding masks":
        return synthetic.draw_mask(shape).astype(tensor.dtype)
    if kind == "drawn images":
        is_first = tensor.dims[1] in synthetic.CHANNELS
        return synthetic.draw_images(shape, channels_first=is_first, raw=tensor.dtype == "uint8").astype(tensor.dtype)
    if kind == "positions":
        places = np.arange(shape[-1]) % (bound or shape[-1])
        return np.broadcast_to(places, shape).astype(tensor.dtype)
    rng = np.random.default_rng(seed)
    is_float = np.dtype(tensor.dtype).kind == "f"
    if given.low is None or given.high is None:
        largest = 1 if tensor.dtype == "bool" else (bound or _LARGEST_INTEGER + 1) - 1
        values = rng.standard_normal(shape) if is_float else rng.integers(0, largest, shape, endpoint=True)
    elif is_float:
        values = rng.uniform(given.low, given.high, shape)
    else:
        values = rng.integers(int(given.low), int(given.high), shape, endpoint=True)
    return values.astype(tensor.dtype)
