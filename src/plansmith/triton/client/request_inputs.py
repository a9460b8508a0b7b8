"""What is sent, held against what the model takes before it is sent; large batches in parts."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plansmith.errors import UsageError
from plansmith.records.model import ANONYMOUS, Dim, Tensor
from plansmith.triton.client.dtypes import BFLOAT16, STRING, Signature, format_dims, numpy_dtype, wire_shape

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]


def missing_inputs(signature: Signature, feed: Mapping[str, object]) -> list[str]:
    """The inputs that a feed lacks and the model is not known to do without."""
    return [t.name for t in signature.inputs if t.name not in feed and t.name not in signature.optional]


def checked_feed(signature: Signature, feed: Mapping[str, object]) -> dict[str, NDArray[Any]]:
    """The arrays to send, in the dtypes of the inputs.

    An array may have a dtype that goes into the input's without loss (`numpy.can_cast`); numbers, lists and strings
    of Python have none and take the input's.

    Args:
        signature: what the model takes.
        feed: values by input.

    Raises:
        UsageError: everything that is wrong with the feed, and what the model takes.
    """
    by_name = {t.name: t for t in signature.inputs}
    problems = [_unknown(name, sorted(by_name)) for name in feed if name not in by_name]
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
        raise UsageError("\n".join([*problems, "The model has:", signature.words()]), remedy="send what it takes")
    return arrays


def parts(arrays: Arrays, max_batch_size: int) -> Iterator[dict[str, NDArray[Any]]]:
    """The requests that a feed comes to: one, unless its batch is larger than the model's largest."""
    batch = len(next(iter(arrays.values()))) if max_batch_size else 0
    if batch <= max_batch_size:
        yield dict(arrays)
        return
    for start in range(0, batch, max_batch_size):
        yield {name: array[start : start + max_batch_size] for name, array in arrays.items()}


def expected_shapes(signature: Signature, outputs: Sequence[Tensor], arrays: Arrays) -> list[tuple[int, ...] | None]:
    """The shapes in which the answers to arrays travel; None where a dim follows from nothing that is sent."""
    sizes: dict[Dim, int] = {}
    for tensor in signature.inputs:
        if tensor.name in arrays:
            sizes |= dict(zip(tensor.dims, arrays[tensor.name].shape, strict=True))
    sizes.pop(ANONYMOUS, None)
    found: list[tuple[int, ...] | None] = []
    for tensor in outputs:
        shape = tuple(dim if isinstance(dim, int) else sizes.get(dim, -1) for dim in tensor.dims)
        found.append(None if -1 in shape else wire_shape(tensor, shape, signature.max_batch_size))
    return found


def joined(answers: Sequence[Arrays]) -> dict[str, NDArray[Any]]:
    """The answers to the parts of one feed as one.

    Raises:
        UsageError: they differ in more than their batch.
    """
    import numpy as np

    if len(answers) == 1:
        return dict(answers[0])
    found = {}
    for name, first in answers[0].items():
        shapes = {answer[name].shape[1:] for answer in answers}
        if len(shapes) > 1:
            listed = " and ".join(str(list(shape)) for shape in sorted(shapes))
            raise UsageError(
                f"the answers to the parts of this batch cannot be joined: output {name!r} has samples of {listed}",
                remedy=f"send at most {len(first)} samples at once",
            )
        found[name] = np.concatenate([answer[name] for answer in answers])
    return found


def _unknown(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"there is no input {name!r}" + (f"; {close[0]!r} is meant, perhaps" if close else "")


def _as_input(tensor: Tensor, given: object) -> NDArray[Any]:
    """A value as an array of the input's dtype, contiguous.

    Raises:
        ValueError: it has another dtype, as the end of a sentence that names the input.
    """
    import numpy as np

    if isinstance(given, np.ndarray | np.generic):
        return _cast(tensor, np.asarray(given))
    try:
        array = np.asarray(given, dtype=object if tensor.dtype == STRING else None)
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
    wanted = numpy_dtype(tensor.dtype)
    if array.dtype != wanted and not np.can_cast(array.dtype, wanted, "safe"):
        how = "array.astype(ml_dtypes.bfloat16)" if tensor.dtype == BFLOAT16 else f"array.astype({tensor.dtype!r})"
        raise ValueError(f"takes {tensor.dtype} and was given {array.dtype}, which may lose digits; {how} does it")
    return np.require(array, wanted, "C")


def _from_python(tensor: Tensor, array: NDArray[Any]) -> NDArray[Any]:
    """Python's numbers in the input's dtype; decimals are rounded to it, and whole numbers have to fit."""
    import numpy as np

    wanted = numpy_dtype(tensor.dtype)
    kinds = {"b": "b", "i": "iu", "u": "iu"}.get(wanted.kind, "iuf")
    if array.dtype.kind not in kinds:
        found = {"b": "true or false", "f": "decimals", "U": "text", "O": "values of several kinds"}
        raise ValueError(f"takes {tensor.dtype} and was given {found.get(array.dtype.kind, str(array.dtype))}")
    if wanted.kind in "iu":
        limits = np.iinfo(wanted)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise ValueError(f"takes {tensor.dtype} and was given {_outside(array, limits)}, which does not fit")
    with np.errstate(over="ignore"):
        cast = array.astype(wanted)
    if wanted.kind not in "iub" and (np.isfinite(array) & ~np.isfinite(cast)).any():
        raise ValueError(f"takes {tensor.dtype} and was given {abs(array).max():g}, which does not fit")
    return cast


def _outside(array: NDArray[Any], limits: np.iinfo[Any]) -> int:
    low, high = int(array.min()), int(array.max())
    return low if low < limits.min else high


def _strings(array: NDArray[Any]) -> NDArray[Any]:
    """The same strings as UTF-8 bytes.

    Raises:
        ValueError: something in it is neither text nor bytes.
    """
    import numpy as np

    found = np.empty(array.size, dtype=object)
    for place, item in enumerate(array.flat):
        if not isinstance(item, str | bytes):
            raise ValueError(f"takes strings and was given {type(item).__name__}")  # noqa: TRY004 - collected
        found[place] = item.encode() if isinstance(item, str) else bytes(item)
    return found.reshape(array.shape)


def _wrong_sizes(tensors: Mapping[str, Tensor], arrays: Arrays) -> list[str]:
    """What is wrong with the shapes, a line each; dims of one name have to agree between the inputs."""
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
                before, other = settled.setdefault(dim, (size, name))
                if before != size:
                    problems.append(f"{dim} is {before} in input {other!r} and {size} in {name!r}")
    if settled.get("batch", (1, ""))[0] == 0:
        problems.append("the batch is empty")
    return problems
