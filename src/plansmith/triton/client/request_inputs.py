"""Request inputs: checked against the model before sending; large batches are split."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plansmith.errors import UsageError
from plansmith.records.model import ANONYMOUS, BATCH, Dim, Tensor
from plansmith.triton.dtypes import BFLOAT16, STRING, Signature, format_dims, numpy_dtype, wire_shape

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from plansmith.records.arrays import Arrays

_OTHER_SIZE = 8
_MASK_LIKE = re.compile("mask", re.IGNORECASE)
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_Axis = str | tuple[int, int]
"""A dim that moves: its name, or where it stands (rank and place) when it has none."""


def missing_inputs(signature: Signature, feed: Mapping[str, object]) -> list[str]:
    """Return the inputs missing from a feed, except those known to be optional."""
    return [t.name for t in signature.inputs if t.name not in feed and t.name not in signature.optional]


def checked_feed(signature: Signature, feed: Mapping[str, object]) -> dict[str, NDArray[Any]]:
    """Return the arrays to send, converted to the dtypes of the inputs.

    An array may have a dtype that goes into the input's without loss (`numpy.can_cast`); numbers, lists and strings
    of Python have none and take the input's.

    Args:
        signature: what the model takes.
        feed: values by input.

    Raises:
        UsageError: everything that is wrong with the feed, and what the model takes.
    """
    by_name = {t.name: t for t in signature.inputs}
    problems = [unknown_input(name, sorted(by_name)) for name in feed if name not in by_name]
    problems += [
        f"input {name!r} is missing: it takes {by_name[name].dtype} {format_dims(by_name[name].dims)}"
        for name in missing_inputs(signature, feed)
    ]
    arrays: dict[str, NDArray[Any]] = {}
    for tensor in signature.inputs:
        if tensor.name in feed:
            try:
                arrays[tensor.name] = _as_input(tensor, feed[tensor.name])
            except ValueError as error:
                problems.append(f"input {tensor.name!r} {error}")
    problems += _wrong_sizes({name: by_name[name] for name in arrays}, arrays)
    if not arrays and not problems:
        problems.append("nothing is sent: every input is left out")
    if problems:
        raise UsageError("\n".join([*problems, "The model has:", signature.describe()]), remedy="send what it takes")
    return arrays


def parts(arrays: Arrays, max_batch_size: int) -> Iterator[dict[str, NDArray[Any]]]:
    """Split a feed into requests: one, unless its batch exceeds the model's maximum."""
    batch = len(next(iter(arrays.values()))) if max_batch_size else 0
    if batch <= max_batch_size:
        yield dict(arrays)
        return
    for start in range(0, batch, max_batch_size):
        yield {name: array[start : start + max_batch_size] for name, array in arrays.items()}


def expected_shapes(signature: Signature, outputs: Sequence[Tensor], arrays: Arrays) -> list[tuple[int, ...] | None]:
    """Return the expected wire shapes of the outputs; None if a dim cannot be derived from the inputs."""
    sizes: dict[Dim, int] = {}
    for tensor in signature.inputs:
        if tensor.name in arrays:
            sizes |= dict(zip(tensor.dims, arrays[tensor.name].shape, strict=True))
    sizes.pop(ANONYMOUS, None)
    shapes: list[tuple[int, ...] | None] = []
    for tensor in outputs:
        shape = tuple(dim if isinstance(dim, int) else sizes.get(dim, -1) for dim in tensor.dims)
        shapes.append(None if -1 in shape else wire_shape(tensor, shape, signature.max_batch_size))
    return shapes


def joined(answers: Sequence[Arrays]) -> dict[str, NDArray[Any]]:
    """Join the responses to the parts of one feed.

    Raises:
        UsageError: they differ in more than their batch.
    """
    import numpy as np

    if len(answers) == 1:
        return dict(answers[0])
    arrays = {}
    for name, first in answers[0].items():
        shapes = {answer[name].shape[1:] for answer in answers}
        if len(shapes) > 1:
            listed = " and ".join(str(list(shape)) for shape in sorted(shapes))
            raise UsageError(
                f"the answers to the parts of this batch cannot be joined: output {name!r} has samples of {listed}",
                remedy=f"send at most {len(first)} samples at once",
            )
        arrays[name] = np.concatenate([answer[name] for answer in answers])
    return arrays


def unknown_input(name: str, names: Sequence[str]) -> str:
    """Say that a model has no input of a name, and which may be meant."""
    close = difflib.get_close_matches(name, names, 1)
    return f"there is no input {name!r}" + (f"; {close[0]!r} is meant, perhaps" if close else "")


def _as_input(tensor: Tensor, value: object) -> NDArray[Any]:
    """Convert a value to a contiguous array of the input's dtype.

    Raises:
        ValueError: it has another dtype, as the end of a sentence that names the input.
    """
    import numpy as np

    if isinstance(value, np.ndarray | np.generic):
        return _cast(tensor, np.asarray(value))
    try:
        array = np.asarray(value, dtype=object if tensor.dtype == STRING else None)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"is no array: {error}") from error
    if tensor.dtype == STRING:
        return _strings(array)
    if array.size == 0:
        return array.astype(numpy_dtype(tensor.dtype))
    return _from_python(tensor, array)


def _cast(tensor: Tensor, array: NDArray[Any]) -> NDArray[Any]:
    import numpy as np

    if tensor.dtype == STRING:
        if array.dtype.kind not in "OSUT":
            raise ValueError(f"takes strings and was given {array.dtype}")
        return _strings(array.astype(object))
    target = numpy_dtype(tensor.dtype)
    if array.dtype != target and not np.can_cast(array.dtype, target, "safe"):
        how = "array.astype(ml_dtypes.bfloat16)" if tensor.dtype == BFLOAT16 else f"array.astype({tensor.dtype!r})"
        raise ValueError(f"takes {tensor.dtype} and was given {array.dtype}, which may lose digits; {how} does it")
    return np.require(array, target, "C")


def _from_python(tensor: Tensor, array: NDArray[Any]) -> NDArray[Any]:
    """Convert Python numbers to the input's dtype; floats are rounded, and integers must fit."""
    import numpy as np

    target = numpy_dtype(tensor.dtype)
    kinds = {"b": "b", "i": "iu", "u": "iu"}.get(target.kind, "iuf")
    if array.dtype.kind not in kinds:
        descriptions = {"b": "true or false", "f": "decimals", "U": "text", "O": "values of several kinds"}
        raise ValueError(f"takes {tensor.dtype} and was given {descriptions.get(array.dtype.kind, str(array.dtype))}")
    if target.kind in "iu":
        limits = np.iinfo(target)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise ValueError(f"takes {tensor.dtype} and was given {_outside(array, limits)}, which does not fit")
    with np.errstate(over="ignore"):
        cast = array.astype(target)
    if target.kind not in "iub" and (np.isfinite(array) & ~np.isfinite(cast)).any():
        raise ValueError(f"takes {tensor.dtype} and was given {abs(array).max():g}, which does not fit")
    return cast


def _outside(array: NDArray[Any], limits: np.iinfo[Any]) -> int:
    low, high = int(array.min()), int(array.max())
    return low if low < limits.min else high


def _strings(array: NDArray[Any]) -> NDArray[Any]:
    """Encode strings as UTF-8 bytes.

    Raises:
        ValueError: something in it is neither text nor bytes.
    """
    import numpy as np

    strings = np.empty(array.size, dtype=object)
    for place, item in enumerate(array.flat):
        if not isinstance(item, str | bytes):
            raise ValueError(f"takes strings and was given {type(item).__name__}")  # noqa: TRY004 - collected
        strings[place] = item.encode() if isinstance(item, str) else bytes(item)
    return strings.reshape(array.shape)


def _wrong_sizes(tensors: Mapping[str, Tensor], arrays: Arrays) -> list[str]:
    """The shape problems, one a line; dynamic axes of one name must agree across inputs."""
    problems = []
    settled: dict[str, tuple[int, str]] = {}
    for name, array in arrays.items():
        dims = tensors[name].dims
        shape = list(array.shape)
        if len(dims) != array.ndim:
            problems.append(f"input {name!r} takes {format_dims(dims)} and was given {shape}")
            continue
        for dim, size in zip(dims, shape, strict=True):
            if isinstance(dim, int):
                if dim != size:
                    problems.append(f"input {name!r} takes {format_dims(dims)} and was given {shape}")
                    break
            elif dim != ANONYMOUS:
                before, first_name = settled.setdefault(dim, (size, name))
                if before != size:
                    problems.append(f"{dim} is {before} in input {first_name!r} and {size} in {name!r}")
    if settled.get("batch", (1, ""))[0] == 0:
        problems.append("the batch is empty")
    return problems


def drawn_feed(
    signature: Signature,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
) -> dict[str, NDArray[Any]]:
    """Return a random array for each required input: valid in name, dtype and shape, but without meaning.

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

    own_shapes = shapes or {}
    axes: dict[_Axis, int] = {BATCH: 1}
    axes.update((sizes or {}).items())
    for name, shape in own_shapes.items():
        axes |= _axes(signature, name, shape)
    random = np.random.default_rng(seed)
    feed = {}
    for tensor in signature.inputs:
        if tensor.name not in signature.optional or tensor.name in own_shapes:
            shape = tuple(
                dim if isinstance(dim, int) else axes.get(_axis(tensor, place), _OTHER_SIZE)
                for place, dim in enumerate(tensor.dims)
            )
            feed[tensor.name] = _draw(tensor, own_shapes.get(tensor.name, shape), random)
    return feed


def _fits(tensor: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether an input accepts a shape, as far as its own dims show."""
    return len(shape) == len(tensor.dims) and all(
        dim == size or not isinstance(dim, int) for dim, size in zip(tensor.dims, shape, strict=True)
    )


def _axis(tensor: Tensor, place: int) -> _Axis:
    dim = tensor.dims[place]
    return (len(tensor.dims), place) if dim == ANONYMOUS else str(dim)


def _axes(signature: Signature, name: str, shape: tuple[int, ...]) -> dict[_Axis, int]:
    """The axis sizes that an input's shape implies."""
    tensor = next((t for t in signature.inputs if t.name == name), None)
    if tensor is None:
        names = ", ".join(t.name for t in signature.inputs)
        raise UsageError(f"there is no input {name!r} to give a shape", remedy=f"the inputs are {names}")
    if not _fits(tensor, shape):
        raise UsageError(
            f"input {name!r} cannot have the shape {'x'.join(map(str, shape))}",
            remedy=f"give one that fits {format_dims(tensor.dims)}",
        )
    return {_axis(tensor, place): shape[place] for place, dim in enumerate(tensor.dims) if not isinstance(dim, int)}


def _draw(tensor: Tensor, shape: tuple[int, ...], random: np.random.Generator) -> NDArray[Any]:
    import numpy as np

    if tensor.dtype == STRING:
        texts = ["".join(random.choice(list(_LETTERS), 8)) for _ in range(int(np.prod(shape)))]
        return np.array(texts, dtype=object).reshape(shape)
    dtype = numpy_dtype(tensor.dtype)
    if tensor.dtype == BFLOAT16 or dtype.kind == "f":
        return random.standard_normal(shape).astype(dtype)
    if _MASK_LIKE.search(tensor.name):
        return np.ones(shape, dtype)
    return random.integers(0, 2, shape).astype(dtype)
