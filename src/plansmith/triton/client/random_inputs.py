"""Inputs drawn at random, for a first request to a model of which only its interface is known."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from plansmith.errors import UsageError
from plansmith.records.model import ANONYMOUS, BATCH, Tensor
from plansmith.triton.client.dtypes import BFLOAT16, STRING, Signature, format_dims, numpy_dtype

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_OTHER_SIZE = 8
_MASK_LIKE = re.compile("mask", re.IGNORECASE)
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def drawn_feed(
    signature: Signature,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
) -> dict[str, NDArray[Any]]:
    """An array for each input that may not be left out: valid by names, dtypes and shapes, and without meaning.

    Decimals are normally distributed. Whole numbers are 0 or 1, which stand in every vocabulary; masks hide nothing.

    Args:
        signature: what the model takes.
        shapes: of some inputs, batch included. Dims of the same name follow in the others, and so do dims without a
            name that stand in the same place of as many: a server does not tell that sequences are of one length.
        sizes: of axes by name, where `shapes` says nothing; otherwise a batch of 1, and 8.
        seed: the same seed draws the same values.

    Raises:
        UsageError: shapes of an input that the model does not have, or that it does not take.
    """
    import numpy as np

    given = shapes or {}
    axes: dict[_Axis, int] = {BATCH: 1}
    axes.update((sizes or {}).items())
    for name, shape in given.items():
        axes |= _axes(signature, name, shape)
    random = np.random.default_rng(seed)
    found = {}
    for tensor in signature.inputs:
        if tensor.name not in signature.optional or tensor.name in given:
            shape = tuple(
                dim if isinstance(dim, int) else axes.get(_axis(tensor, place), _OTHER_SIZE)
                for place, dim in enumerate(tensor.dims)
            )
            found[tensor.name] = _draw(tensor, given.get(tensor.name, shape), random)
    return found


def fits(tensor: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether an input takes a shape, as far as its own dims tell."""
    return len(shape) == len(tensor.dims) and all(
        dim == size or not isinstance(dim, int) for dim, size in zip(tensor.dims, shape, strict=True)
    )


_Axis = str | tuple[int, int]
"""A dim that moves: its name, or where it stands (rank and place) when it has none."""


def _axis(tensor: Tensor, place: int) -> _Axis:
    dim = tensor.dims[place]
    return (len(tensor.dims), place) if dim == ANONYMOUS else str(dim)


def _axes(signature: Signature, name: str, shape: tuple[int, ...]) -> dict[_Axis, int]:
    """The sizes that the shape of an input gives to axes."""
    tensor = next((t for t in signature.inputs if t.name == name), None)
    if tensor is None:
        known = ", ".join(t.name for t in signature.inputs)
        raise UsageError(f"there is no input {name!r} to give a shape", remedy=f"the inputs are {known}")
    if not fits(tensor, shape):
        raise UsageError(
            f"input {name!r} cannot have the shape {'x'.join(map(str, shape))}",
            remedy=f"give one that fits {format_dims(tensor.dims)}",
        )
    return {_axis(tensor, place): shape[place] for place, dim in enumerate(tensor.dims) if not isinstance(dim, int)}


def _draw(tensor: Tensor, shape: tuple[int, ...], random: np.random.Generator) -> NDArray[Any]:
    import numpy as np

    if tensor.dtype == STRING:
        words = ["".join(random.choice(list(_LETTERS), 8)) for _ in range(int(np.prod(shape)))]
        return np.array(words, dtype=object).reshape(shape)
    dtype = numpy_dtype(tensor.dtype)
    if tensor.dtype == BFLOAT16 or dtype.kind == "f":
        return random.standard_normal(shape).astype(dtype)
    if _MASK_LIKE.search(tensor.name):
        return np.ones(shape, dtype)
    return random.integers(0, 2, shape).astype(dtype)
