"""One sample as it is read, before a model's tokenizer or processor made arrays of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.config.data import TEXT, TEXT_PAIR
from plansmith.errors import SourceError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DIGEST_DIGITS = 16


@dataclass(frozen=True)
class Sample:
    """What one row of the data holds.

    Args:
        row: its place in the data, from 0.
        values: by role or input: text or a list of words; an image as a path, bytes, PIL's or an array; numbers.
        label: as it was read; None where there is none.
        digest: of the values, without the label: two samples with the same inputs are one, whatever they are called.
    """

    row: int
    values: Mapping[str, Any]
    label: Any
    digest: str


def make_sample(row: int, values: Mapping[str, Any], label: Any = None) -> Sample:
    """A sample with its digest.

    Raises:
        OSError: an image file cannot be read.
    """
    digest = hashlib.sha256()
    for name in sorted(values):
        _add(digest, name)
        _add(digest, values[name])
    return Sample(row, values, label, digest.hexdigest()[:DIGEST_DIGITS])


def changing(name: str) -> SourceError:
    """The error of data that are others when they are read again."""
    return SourceError(
        f"{name} yields other samples each time", remedy="seed it, or let nothing write to it while it is read"
    )


def extent(sample: Sample) -> int:
    """How long a sample is, to order samples by: letters of its texts, elements of its arrays."""
    return sum(_size(value) for value in sample.values.values())


def halves(sample: Sample) -> tuple[Sample, Sample]:
    """The two texts of a pair, each a sample by itself with the pair's row, digest and, for the first, label."""
    first = Sample(sample.row, {TEXT: sample.values[TEXT]}, sample.label, sample.digest)
    return first, Sample(sample.row, {TEXT: sample.values[TEXT_PAIR]}, None, sample.digest)


def digest_of_array(array: NDArray[np.generic]) -> bytes:
    """Of dtype, shape and values."""
    import numpy as np

    head = f"{array.dtype.str}{array.shape}".encode()
    return hashlib.sha256(head + np.ascontiguousarray(array).tobytes()).digest()


def _add(digest: Any, value: Any) -> None:
    """One value, with its kind and length before it, so that no two values run into each other."""
    kind, content = _bytes_of(value)
    digest.update(f"{kind}{len(content)}:".encode() + content)


def _bytes_of(value: Any) -> tuple[str, bytes]:
    if isinstance(value, Path):
        return "b", value.read_bytes()
    if isinstance(value, bytes):
        return "b", value
    if isinstance(value, str):
        return "s", value.encode(errors="surrogatepass")
    if hasattr(value, "tobytes") and hasattr(value, "mode"):  # an image of PIL
        return "i", f"{value.mode}{value.size}".encode() + value.tobytes()
    if hasattr(value, "dtype"):
        return "a", digest_of_array(value)
    return "j", json.dumps(value, sort_keys=True, default=_listed).encode()


def _listed(value: Any) -> Any:
    """What JSON does not know inside of a list: numbers and arrays of NumPy."""
    return value.tolist() if hasattr(value, "tolist") else repr(value)


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return sum(_size(v) for v in value)
    return int(getattr(value, "size", 1)) if hasattr(value, "dtype") else 1
