"""Inputs of `plansmith infer`: texts, files, values by name, and randomly drawn ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.data.tables import UNREADABLE_ARRAYS, require_array
from plansmith.errors import UsageError, first_line
from plansmith.records.pipeline import PREPARED_INPUTS

if TYPE_CHECKING:
    from plansmith.records.model import Tensor
    from plansmith.triton.client import Signature


_STANDARD_INPUT = "-"
_STRING, _BYTES = "string", "uint8"
_SUFFIXES = {".npy", ".npz", ".json"}


@dataclass(frozen=True)
class Row:
    """One row of an input of strings or bytes.

    Attributes:
        option: --text or --file.
        name: of the input; empty if none is named, and always of a text, which may begin with it (`NAME=…`).
        content: the text or the file.
    """

    option: str
    name: str
    content: bytes


@dataclass(frozen=True)
class InputArguments:
    """Input arguments with all files read; the model is not queried yet.

    Attributes:
        rows: texts and files.
        values: by input.
        texts: values by input whose type depends on the input's dtype.
        draw: draw the required inputs that are not given.
    """

    rows: Sequence[Row]
    values: Mapping[str, object]
    texts: Mapping[str, str]
    draw: bool

    @property
    def is_empty(self) -> bool:
        """Whether no inputs were given."""
        return not (self.rows or self.values or self.texts or self.draw)

    def feed(self, signature: Signature, sizes: Mapping[str, int]) -> dict[str, object]:
        """Build the inputs to send to a model.

        A value of one dim less than the input's is one sample, and gets its batch; a single number or text, all dims.

        Args:
            signature: what the model takes.
            sizes: the usual sizes of axes, for drawn inputs; axes that a given input has take its sizes.

        Raises:
            UsageError: nothing is given, or not as the model has it.
        """
        import numpy as np

        from plansmith.records.model import BATCH
        from plansmith.triton.client.request_inputs import drawn_feed

        if self.is_empty:
            raise UsageError(
                f"no input is given. The model has:\n{signature.describe()}", remedy=f"pass {_example(signature)}"
            )
        tensors = {tensor.name: tensor for tensor in signature.inputs}
        values = {**self.values, **{name: _parse(tensors.get(name), name, text) for name, text in self.texts.items()}}
        batches = signature.max_batch_size > 0
        values |= {
            name: _add_dims(tensor, values[name], batches=batches) for name, tensor in tensors.items() if name in values
        }
        rows = row_arrays(signature, self.rows)
        if twice := sorted(rows.keys() & values.keys()):
            raise _given_twice(twice[0])
        feed: dict[str, Any] = {**values, **rows}
        if not self.draw:
            return feed
        shapes = {}
        for name in (name for name in tensors if name in feed):
            with suppress(ValueError):  # the client refuses what is no array
                shapes[name] = np.shape(feed[name])
        return {**drawn_feed(signature, shapes=shapes, sizes={**sizes, BATCH: 1}), **feed}


def read_input_arguments(options: Mapping[str, Any]) -> InputArguments:
    """Read the options of `input_options`, with their files.

    Raises:
        UsageError: another form, a file that cannot be read, an input that is given twice.
    """
    inputs: Sequence[str] = options["inputs"]
    document: str | None = options["input_json"]
    if [*(text.partition("=")[2] for text in inputs), document].count(_STANDARD_INPUT) > 1:
        raise UsageError("standard input is to be read twice", remedy="give it once, and name files for the rest")
    # Bytes that the locale could not decode are preserved (PEP 383).
    rows = [Row("--text", "", text.encode("utf-8", "surrogateescape")) for text in options["texts"]]
    rows += map(_read_file, options["files"])
    values = {} if document is None else read_document(document)
    texts: dict[str, str] = {}
    for text in inputs:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--input {text!r} is not NAME=VALUE", remedy="write it like --input input_ids=1,2,3")
        if name in values or name in texts:
            raise _given_twice(name)
        if value == _STANDARD_INPUT or Path(value).suffix in _SUFFIXES:
            values[name] = _read_value(name, value if Path(value).exists() else value.removeprefix("@"))
        else:
            texts[name] = value
    return InputArguments(rows, values, texts, options["draw"])


def row_arrays(signature: Signature, rows: Sequence[Row]) -> dict[str, object]:
    """Convert texts and files to values of the model's inputs; one row alone goes with each row of the others.

    Raises:
        UsageError: an input that the model does not have, none or several that could be meant.
    """
    by_input: dict[str, list[bytes]] = {}
    for row in rows:
        name, content = _assign(signature, row)
        by_input.setdefault(name, []).append(content)
    count = max(map(len, by_input.values()), default=0)
    tensors = {tensor.name: tensor for tensor in signature.inputs}
    return {
        name: _array(tensors[name], contents * count if len(contents) == 1 else contents)
        for name, contents in by_input.items()
    }


def _assign(signature: Signature, row: Row) -> tuple[str, bytes]:
    """Return the input that takes a row, and the content without its name.

    What stands before the first "=" of a text is a name if it is an input's, or if there are several for texts.
    """
    from plansmith.triton.client.request_inputs import unknown_input

    takers = _inputs_for(signature, row.option)
    dtypes = {tensor.name: tensor.dtype for tensor in signature.inputs}
    name, content = row.name, row.content
    if row.option == "--text":
        before, sign, text = content.partition(b"=")
        prefix = before.decode(errors="replace")
        if sign and (prefix in dtypes or (len(takers) > 1 and prefix.isidentifier())):
            name, content = prefix, text
    required = [taker for taker in takers if taker not in signature.optional] or takers
    if name in takers or (not name and len(required) == 1):
        return name or required[0], content
    if name in dtypes:
        raise UsageError(
            f"{row.option} gives text or bytes, and input {name!r} takes {dtypes[name]}",
            remedy=f"pass --input {name}=VALUE",
        )
    unplaced = f"{row.option} gives text or bytes, which {len(takers) or 'no'} inputs take"
    raise UsageError(
        f"{unknown_input(name, sorted(dtypes)) if name else unplaced}. The model has:\n{signature.describe()}",
        remedy=f"name the input that is meant: {row.option} {takers[0]}=…" if takers else _without_takers(dtypes),
    )


def _without_takers(names: Iterable[str]) -> str:
    """Return the remedy for a model without inputs of strings or bytes."""
    pipeline = "compile it with --pipeline (`pipeline: {}` in a spec), which takes raw inputs; or "
    return f"{pipeline if PREPARED_INPUTS.intersection(names) else ''}pass --input NAME=VALUE"


def _inputs_for(signature: Signature, option: str) -> list[str]:
    """Return the inputs of strings; for a file of a model without such, those whose samples are any number of bytes."""
    strings = [tensor.name for tensor in signature.inputs if tensor.dtype == _STRING]
    if strings or option != "--file":
        return strings
    rank = 2 if signature.max_batch_size else 1
    return [
        tensor.name
        for tensor in signature.inputs
        if tensor.dtype == _BYTES and len(tensor.dims) == rank and not isinstance(tensor.dims[-1], int)
    ]


def _array(tensor: Tensor, contents: Sequence[bytes]) -> object:
    """Return an array with one row per content in the input's dims; the client refuses what does not fit."""
    import numpy as np

    if tensor.dtype == _BYTES:
        sizes = sorted({len(content) for content in contents})
        if len(sizes) > 1:
            raise UsageError(
                f"the files are of {sizes[0]} to {sizes[-1]} bytes, and {tensor.name!r} takes rows of one size",
                remedy="send them one by one",
            )
        rows = [np.frombuffer(content, np.uint8) for content in contents]
        return rows[0] if len(tensor.dims) == 1 and len(rows) == 1 else np.stack(rows)
    array = np.empty(len(contents), dtype=object)
    array[:] = contents
    return array.reshape((len(contents), *(1,) * (len(tensor.dims) - 1))) if tensor.dims else contents[0]


def _read_file(argument: str) -> Row:
    """Read [NAME=]FILE; an existing file with the whole argument as its name wins."""
    name, sign, place = argument.partition("=")
    try:
        if not sign or not name or Path(argument).exists():
            name, place = "", argument
        else:
            place = str(Path(place).expanduser())
        if Path(place).is_dir():
            raise UsageError(f"{place} is a folder", remedy="pass --file for each file that is meant")
        content = Path(place).read_bytes()
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError is a ~NAME without a home
        reason = error.strerror if isinstance(error, OSError) else first_line(error)
        raise UsageError(
            f"{place} cannot be read: {reason}", remedy="name a file that is there and readable"
        ) from error
    if not content:
        raise UsageError(f"{place} is empty", remedy="name a file that holds something")
    return Row("--file", name, content)


def _read_value(name: str, place: str) -> object:
    """Read the value of an input from a file: all of it, or the entry under the input's name."""
    if place == _STANDARD_INPUT or Path(place).suffix == ".json":
        document = _read_json(place)
        value: object = _entry(document, name, place) if isinstance(document, dict) else document
        return value
    try:
        return _read_arrays(name, place)
    except UNREADABLE_ARRAYS as error:
        raise UsageError(f"{place} cannot be read as NumPy's arrays: {error}", remedy="name another file") from error


def _read_arrays(name: str, place: str) -> object:
    """Read the array of a .npy or .npz file; of several, only the one with the input's name."""
    import numpy as np

    with Path(place).open("rb") as stream:
        loaded = np.load(stream, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return require_array(loaded)
        return require_array(loaded[loaded.files[0]] if len(loaded.files) == 1 else _entry(loaded, name, place))


def _entry(document: Mapping[str, object], name: str, place: str) -> object:
    if name not in document:
        raise UsageError(
            f"{place} holds no {name!r}",
            remedy=f"name another file: it holds {', '.join(sorted(document)) or 'nothing'}",
        )
    return document[name]


def read_document(place: str) -> dict[str, object]:
    """Read values by input name, or a KServe request, whose data may be flat.

    Raises:
        UsageError: no such document.
    """
    document = _read_json(place)
    if not isinstance(document, dict):
        raise UsageError(f"{place} is no JSON object", remedy='write {"input": value, ...} into it')
    rows = document.get("inputs")
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "name" in row for row in rows):
        return document
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


def _read_json(place: str) -> Any:
    try:
        text = sys.stdin.read() if place == _STANDARD_INPUT else Path(place).read_text(encoding="utf-8")
        return json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        where = "standard input" if place == _STANDARD_INPUT else place
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{where} cannot be read as JSON: {reason}", remedy="give a file that holds JSON") from error


def _given_twice(name: str) -> UsageError:
    return UsageError(f"input {name!r} is given twice", remedy="give each input once")


def _example(signature: Signature) -> str:
    """Return example options for a model."""
    required = [tensor for tensor in signature.inputs if tensor.name not in signature.optional]
    strings = [tensor.name for tensor in required if tensor.dtype == _STRING]
    if len(strings) < len(required) or not strings:
        return "--input NAME=VALUE or --random"
    return '--text "…" or --file FILE' if len(strings) == 1 else " ".join(f'--text {name}="…"' for name in strings)


def _parse(tensor: Tensor | None, name: str, text: str) -> object:
    """Parse JSON, or numbers with commas between them; for an input of strings all but JSON is the text itself."""
    if tensor is not None and tensor.dtype == _STRING and not text.startswith(("[", '"')):
        return text
    for form in (text, f"[{text}]"):
        with suppress(ValueError, RecursionError):
            value: object = json.loads(form)
            return value
    raise UsageError(
        f"--input {name}={text} is neither a file nor numbers",
        remedy=f"write it like {name}=1,2,3 or {name}='[[1, 2], [3, 4]]', or name a .npy, .npz or .json file",
    )


def _add_dims(tensor: Tensor, value: Any, *, batches: bool) -> object:
    """Add the batch dim to a sample, and all dims to a single value; the client refuses what has other dims."""
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
