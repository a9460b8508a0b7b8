"""Files of values for `plansmith infer`: NumPy's arrays and JSON, which may come on standard input, too."""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from plansmith.cli.infer.raw import STANDARD_INPUT
from plansmith.errors import UsageError

SUFFIXES = {".npy", ".npz", ".json"}
# RuntimeError is an archive that is encrypted or packed in a way unknown here; MemoryError sizes that cannot be true.
_UNREADABLE = (OSError, EOFError, ValueError, BadZipFile, zlib.error, RuntimeError, MemoryError)


def read_value(name: str, place: str) -> object:
    """The value of an input from a file: the whole of it, or what stands there by the input's name."""
    if place == STANDARD_INPUT or Path(place).suffix == ".json":
        found = _json(place)
        value: object = _named(found, name, place) if isinstance(found, dict) else found
        return value
    try:
        return _from_numpy(name, place)
    except _UNREADABLE as error:
        raise UsageError(f"{place} cannot be read as NumPy's arrays: {error}", remedy="name another file") from error


def _from_numpy(name: str, place: str) -> object:
    """The array of a .npy or .npz file; of several the one by the input's name, and no other of them is read."""
    import numpy as np

    loaded = np.load(place, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return loaded
    with loaded:
        value: object = loaded[loaded.files[0]] if len(loaded.files) == 1 else _named(loaded, name, place)
    if not isinstance(value, np.ndarray):
        raise ValueError("it holds another file")  # noqa: TRY004 - which NumPy gives as bytes
    return value


def _named(found: Mapping[str, object], name: str, place: str) -> object:
    if name not in found:
        raise UsageError(
            f"{place} holds no {name!r}", remedy=f"name another file: it holds {', '.join(sorted(found)) or 'nothing'}"
        )
    return found[name]


def read_document(place: str) -> dict[str, object]:
    """Values by input's name, or a request of KServe's protocol, whose data may be flat."""
    found = _json(place)
    if not isinstance(found, dict):
        raise UsageError(f"{place} is no JSON object", remedy='write {"input": value, ...} into it')
    rows = found.get("inputs")
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "name" in row for row in rows):
        return found
    import numpy as np

    feed: dict[str, object] = {}
    for row in rows:
        try:
            feed[row["name"]] = np.array(row["data"], dtype=object).reshape(row["shape"]).tolist()
        except (KeyError, ValueError, TypeError) as error:
            raise UsageError(
                f"{place}: input {row['name']!r} has no data that fits its shape",
                remedy='write {"name": …, "shape": […], "data": […]} for each input',
            ) from error
    return feed


def _json(place: str) -> Any:
    try:
        text = sys.stdin.read() if place == STANDARD_INPUT else Path(place).read_text(encoding="utf-8")
        return json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        where = "standard input" if place == STANDARD_INPUT else place
        said = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{where} cannot be read as JSON: {said}", remedy="give a file that holds JSON") from error
