"""Pipeline test cases in files: raw inputs and their answers, with texts and images as bytes, without pickle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.records.pipeline import RawCase

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from plansmith.records.arrays import Arrays


_ENDS = ".ends"
"""Ends the name of an array that says where each text of another one ends; `_SHAPE` that of its shape."""

_SHAPE = ".shape"
_FEED, _ANSWER = "feed/", "answer/"


def store_case(name: str, feed: Arrays, answer: Arrays, under: str, out: Path) -> RawCase:
    """Write a request and its answer into a folder.

    Args:
        name: of the request.
        feed: what is asked.
        answer: what is owed.
        under: the folder of the cases, in `out`.
        out: the folder that paths of cases start from.
    """
    file = f"{under}/{name.replace(' ', '-')}.npz"
    write_case(out / file, feed, answer)
    return RawCase(name=name, file=file, rows=len(next(iter(feed.values()))))


def write_case(file: Path, feed: Arrays, answer: Arrays) -> None:
    """Write a request and its answer; texts are bytes in object arrays."""
    import numpy as np

    file.parent.mkdir(parents=True, exist_ok=True)
    plain: dict[str, NDArray[np.generic]] = {}
    for prefix, arrays in ((_FEED, feed), (_ANSWER, answer)):
        for name, array in arrays.items():
            plain |= _plain(f"{prefix}{name}", array)
    np.savez_compressed(file, **plain)  # type: ignore[arg-type]


def read_case(file: Path) -> tuple[dict[str, NDArray[np.generic]], dict[str, NDArray[np.generic]]]:
    """Read a request and its answer."""
    import numpy as np

    with np.load(file) as stored:
        arrays = dict(stored)
    pair: tuple[dict[str, NDArray[np.generic]], dict[str, NDArray[np.generic]]] = ({}, {})
    for name, array in arrays.items():
        if name.endswith((_ENDS, _SHAPE)):
            continue
        value = array
        if f"{name}{_ENDS}" in arrays:
            value = _texts(array.tobytes(), arrays[f"{name}{_ENDS}"], arrays[f"{name}{_SHAPE}"])
        side, _, own = name.partition("/")
        pair[0 if f"{side}/" == _FEED else 1][own] = value
    return pair


def _plain(name: str, array: NDArray[np.generic]) -> dict[str, NDArray[np.generic]]:
    import numpy as np

    if array.dtype != object:
        return {name: array}
    texts: list[bytes] = array.reshape(-1).tolist()
    return {
        name: np.frombuffer(b"".join(texts), np.uint8),
        f"{name}{_ENDS}": np.cumsum([len(text) for text in texts], dtype=np.int64),
        f"{name}{_SHAPE}": np.array(array.shape, np.int64),
    }


def _texts(content: bytes, ends: NDArray[np.generic], shape: NDArray[np.generic]) -> NDArray[np.generic]:
    import numpy as np

    stops = [int(end) for end in ends]
    texts = [content[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]
    array = np.empty(len(texts), object)
    array[:] = texts
    return array.reshape([int(size) for size in shape])
