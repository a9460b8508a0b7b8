"""Arrays of a .npz file: one an input, whose first axis are the samples, and perhaps one of labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, is_zipfile

from plansmith.data.table import Row, Table
from plansmith.errors import SourceError, first_line

_WRITE_AGAIN = "write it again: numpy.savez(path, input_name=array, label=labels)"


def read_arrays(path: Path) -> Table:
    """A .npz file.

    Raises:
        SourceError: it is none, holds objects, or arrays of different lengths.
    """
    import numpy as np

    if path.is_file() and not is_zipfile(path):
        raise SourceError(f"{path} is no .npz file, or is cut off", remedy=_WRITE_AGAIN)
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, BadZipFile, EOFError, AttributeError) as error:
        raise SourceError(f"{path} cannot be read as .npz: {first_line(error)}", remedy=_WRITE_AGAIN) from error
    lengths = {name: array.shape[0] if array.ndim else None for name, array in arrays.items()}
    if not arrays or len(set(lengths.values())) > 1 or None in lengths.values():
        said = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items()) or "nothing"
        raise SourceError(f"{path} holds {said}: the first axis of all is that of the samples", remedy=_WRITE_AGAIN)

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        for number in range(len(next(iter(arrays.values())))):
            yield Row({name: _plain(arrays[name][number]) for name in columns}, f"{path}, row {number}")

    return Table(path.name, tuple(arrays), rows)


def _plain(value: Any) -> Any:
    """Texts as Python has them."""
    return str(value) if getattr(value, "dtype", None) is not None and value.dtype.kind == "U" else value
