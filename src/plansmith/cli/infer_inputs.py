"""What `plansmith infer` is given: values on the command line, in files and on standard input, as a feed."""

from __future__ import annotations

import json
import re
import sys
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

from plansmith.errors import UsageError

if TYPE_CHECKING:
    from plansmith.client import Signature
    from plansmith.types import Tensor

_STANDARD_INPUT = "-"
_SUFFIXES = {".npy", ".npz", ".json"}
# RuntimeError is an archive that is encrypted or packed in a way unknown here; MemoryError sizes that cannot be true.
_UNREADABLE = (OSError, EOFError, ValueError, BadZipFile, zlib.error, RuntimeError, MemoryError)
_SHAPE = re.compile(r"[1-9]\d*(x[1-9]\d*)*")


def read_inputs(signature: Signature, given: Sequence[str], document: str | None) -> dict[str, object]:
    """The feed that a person gave.

    A value of one dim less than the input's is one sample, and gets its batch; a single number or text, all dims.

    Args:
        signature: what the model takes.
        given: each NAME=VALUE; VALUE is a file (.npy, .npz, .json), - for JSON on standard input, JSON, numbers with
            commas between them, or of an input of strings the text itself.
        document: a file with the values of several inputs as JSON, by name or as a request of KServe's protocol.

    Raises:
        UsageError: another form, a file that cannot be read, an input that is given twice.
    """
    feed = {} if document is None else _document(document)
    strings = {tensor.name for tensor in signature.inputs if tensor.dtype == "string"}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--input {text!r} is not NAME=VALUE", remedy="write it like --input input_ids=1,2,3")
        if name in feed:
            raise UsageError(f"input {name!r} is given twice", remedy="give each input once")
        feed[name] = _value(name, value, is_string=name in strings)
    batches = signature.max_batch_size > 0
    for tensor in signature.inputs:
        if tensor.name in feed:
            feed[tensor.name] = _whole(tensor, feed[tensor.name], batches=batches)
    return feed


def given_shapes(signature: Signature, feed: Mapping[str, object]) -> dict[str, tuple[int, ...]]:
    """The shapes of what is given, which drawn inputs follow; of what the model will refuse, none."""
    import numpy as np

    from plansmith.client.drawing import fits

    found = {}
    for tensor in signature.inputs:
        value: Any = feed.get(tensor.name)
        with suppress(ValueError):
            if value is not None and fits(tensor, np.shape(value)):
                found[tensor.name] = np.shape(value)
    return found


def read_shapes(given: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The shapes of drawn inputs: each NAME=4x64, batch first.

    Raises:
        UsageError: another form.
    """
    found = {}
    for text in given:
        name, _, shape = text.partition("=")
        if not name or not _SHAPE.fullmatch(shape):
            raise UsageError(f"--shape {text!r} is not NAME=SIZES", remedy="write it like --shape input_ids=4x64")
        found[name] = tuple(int(size) for size in shape.split("x"))
    return found


def _value(name: str, text: str, *, is_string: bool) -> object:
    if text == _STANDARD_INPUT or Path(text).suffix in _SUFFIXES:
        return _from_file(name, text)
    if is_string and not text.startswith(("[", '"')):
        return text
    for form in (text, f"[{text}]"):
        with suppress(ValueError, RecursionError):
            found: object = json.loads(form)
            return found
    raise UsageError(
        f"--input {name}={text} is neither a file nor numbers",
        remedy=f"write it like {name}=1,2,3 or {name}='[[1, 2], [3, 4]]', or name a .npy, .npz or .json file",
    )


def _from_file(name: str, place: str) -> object:
    """The value of an input from a file: the whole of it, or what stands there by the input's name."""
    if place == _STANDARD_INPUT or Path(place).suffix == ".json":
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


def _document(place: str) -> dict[str, object]:
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
        text = sys.stdin.read() if place == _STANDARD_INPUT else Path(place).read_text(encoding="utf-8")
        return json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        where = "standard input" if place == _STANDARD_INPUT else place
        said = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{where} cannot be read as JSON: {said}", remedy="give a file that holds JSON") from error


def _whole(tensor: Tensor, value: Any, *, batches: bool) -> object:
    """The value with its batch; what is no array, or has still other dims, stays for the client to refuse."""
    import numpy as np

    try:
        rank = np.ndim(value)
    except ValueError:
        return value
    lacking = len(tensor.dims) - rank
    if rank and (lacking != 1 or not batches):
        return value
    if isinstance(value, np.ndarray):
        return value.reshape((1,) * lacking + value.shape)
    for _ in range(lacking):
        value = [value]
    return value
