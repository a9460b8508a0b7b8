"""Inputs of `plansmith infer`: given values, texts and files, and randomly drawn inputs."""

from __future__ import annotations

import difflib
import json
import re
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

from plansmith.errors import UsageError, first_line

if TYPE_CHECKING:
    from plansmith.records.model import Tensor
    from plansmith.triton.client import Signature


STANDARD_INPUT = "-"

_STRING, _BYTES = "string", "uint8"
_CLOSE = 0.8


@dataclass(frozen=True)
class Rows:
    """Values for one input, as given by the user.

    Args:
        option: by which one.
        name: of the input; empty where none was named, and of a text, before which one may stand (`NAME=…`).
        values: one for each row.
        shown: what a person knows each of them by.
    """

    option: str
    name: str
    values: tuple[bytes, ...]
    shown: tuple[str, ...]


def read_rows(texts: Sequence[str], lines: Sequence[str], files: Sequence[str]) -> list[Rows]:
    """Read everything given by --text, --lines and --file.

    Raises:
        UsageError: a file that cannot be read, that is a folder or empty, or lines that are no UTF-8.
    """
    return [
        *(Rows("--text", "", (_bytes_of(text),), (text,)) for text in texts),
        *(_read_lines(argument) for argument in lines),
        *(_read_file(argument) for argument in files),
    ]


def raw_feed(signature: Signature, rows: Sequence[Rows]) -> dict[str, object]:
    """Convert the rows to values of the model's inputs.

    Args:
        signature: what the model takes.
        rows: from `read_rows`; one row alone goes with each row of the others.

    Raises:
        UsageError: an input that the model does not have, none or several that could be meant, different numbers of
            rows.
    """
    by_input: dict[str, list[bytes]] = {}
    for row_set in rows_by_input(signature, rows):
        by_input.setdefault(row_set.name, []).extend(row_set.values)
    count = max(map(len, by_input.values()), default=0)
    if any(len(values) not in {1, count} for values in by_input.values()):
        counts = ", ".join(f"{name} {len(values)}" for name, values in by_input.items())
        raise UsageError(
            f"the inputs have different numbers of rows: {counts}",
            remedy="give each as many, or a single one, which goes with all rows of the others",
        )
    tensors = {tensor.name: tensor for tensor in signature.inputs}
    return {
        name: _array(tensors[name], values * count if len(values) == 1 else values) for name, values in by_input.items()
    }


def rows_by_input(signature: Signature, rows: Sequence[Rows]) -> list[Rows]:
    """Map the rows to their input names; errors as for `raw_feed`."""
    return [_placed(signature, row_set) for row_set in rows]


def _placed(signature: Signature, rows: Rows) -> Rows:
    """Return the rows with the name of the input that takes them."""
    takers = list(_takers(signature, rows))
    names = [tensor.name for tensor in takers]
    if rows.option == "--text":
        rows = _with_name(signature, rows, names)
    if rows.name:
        if rows.name not in names:
            raise _refused(signature, rows, names)
        return rows
    needed = [name for name in names if name not in signature.optional]
    if len(needed or names) == 1:
        return replace(rows, name=(needed or names)[0])
    if not names:
        raise UsageError(
            f"the model takes no text and no bytes, as {rows.option} gives them. It has:\n{signature.describe()}",
            remedy="pass --input NAME=VALUE",
        )
    raise UsageError(
        f"the model has several inputs that {rows.option} could be for: {', '.join(names)}",
        remedy=f"name the one that is meant: {rows.option} {names[0]}=…",
    )


def _takers(signature: Signature, rows: Rows) -> Iterator[Tensor]:
    """Yield the inputs that take text or bytes; for a file also numeric ones if the model takes no strings."""
    strings = [tensor for tensor in signature.inputs if tensor.dtype == _STRING]
    yield from strings
    if rows.option == "--file" and not strings:
        rank = 2 if signature.max_batch_size else 1
        yield from (
            tensor
            for tensor in signature.inputs
            if tensor.dtype == _BYTES and len(tensor.dims) == rank and not isinstance(tensor.dims[-1], int)
        )


def _with_name(signature: Signature, rows: Rows, names: Sequence[str]) -> Rows:
    """Split off the input name before "=", if it is one; most texts with such a sign are plain text."""
    before, sign, text = rows.shown[0].partition("=")
    input_names = [tensor.name for tensor in signature.inputs]
    is_meant = before in input_names or (
        before.isidentifier() and difflib.get_close_matches(before, input_names, 1, _CLOSE)
    )
    if not sign or not (is_meant or (before.isidentifier() and len(names) > 1)):
        return rows
    return replace(rows, name=before, values=(_bytes_of(text),), shown=(text,))


def _refused(signature: Signature, rows: Rows, names: Sequence[str]) -> UsageError:
    tensor = next((entry for entry in signature.inputs if entry.name == rows.name), None)
    if tensor is not None:
        return UsageError(
            f"input {rows.name!r} takes {tensor.dtype}, and {rows.option} gives text or bytes",
            remedy=f"pass --input {rows.name}=VALUE",
        )
    close = difflib.get_close_matches(rows.name, names, 1)
    hint = f"; {close[0]!r} is meant, perhaps" if close else ""
    plain = f", or where {rows.name}= is text: --text {(close or names)[0]}={rows.name}=…" if names else ""
    return UsageError(
        f"there is no input {rows.name!r}{hint}. The model has:\n{signature.describe()}",
        remedy=f"name one of its inputs{plain if rows.option == '--text' else ''}",
    )


def _array(tensor: Tensor, values: Sequence[bytes]) -> object:
    """Return an array with one row per value in the input's dims; the client refuses values that do not fit."""
    import numpy as np

    if tensor.dtype == _BYTES:
        sizes = sorted({len(value) for value in values})
        if len(sizes) > 1:
            raise UsageError(
                f"the files are of {sizes[0]} to {sizes[-1]} bytes, and {tensor.name!r} takes rows of one size",
                remedy="send them one by one",
            )
        rows = [np.frombuffer(value, np.uint8) for value in values]
        return rows[0] if len(tensor.dims) == 1 and len(rows) == 1 else np.stack(rows)
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array.reshape((len(values), *(1,) * (len(tensor.dims) - 1))) if tensor.dims else values[0]


def _read_lines(argument: str) -> Rows:
    name, place = _named_place(argument)
    where = "standard input" if place == STANDARD_INPUT else place
    content = _standard_input() if place == STANDARD_INPUT else _content("--lines", place)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{where} is no text in UTF-8: line {line} has the byte {content[error.start]:#x}",
            remedy="convert it (iconv -t utf-8), or pass --file for bytes as they are",
        ) from error
    lines = text.split("\n")
    if not lines[-1]:  # what ends the last line begins no other
        lines.pop()
    lines = [line.removesuffix("\r") for line in lines]
    if not lines:
        raise UsageError(f"{where} is empty: there is no line to ask about", remedy="give at least one line")
    return Rows("--lines", name, tuple(line.encode() for line in lines), tuple(lines))


def _read_file(argument: str) -> Rows:
    name, place = _named_place(argument)
    content = _content("--file", place)
    if not content:
        raise UsageError(f"{place} is empty", remedy="name a file that holds something")
    return Rows("--file", name, (content,), (place,))


def _named_place(argument: str) -> tuple[str, str]:
    """Split an argument into input name, if any, and file.

    An existing file with the whole argument as its name wins.
    """
    name, sign, place = argument.partition("=")
    if not sign or not name or Path(argument).exists():
        return "", argument
    return name, place if place == STANDARD_INPUT else str(Path(place).expanduser())


def _content(option: str, place: str) -> bytes:
    path = Path(place)
    try:
        if path.is_dir():
            raise UsageError(f"{place} is a folder", remedy=f"pass {option} for each file that is meant")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else first_line(error)
        raise UsageError(
            f"{place} cannot be read: {reason}", remedy="name a file that is there and readable"
        ) from error


def _standard_input() -> bytes:
    return b"" if sys.stdin is None else sys.stdin.buffer.read()


def _bytes_of(text: str) -> bytes:
    """Return an argument as bytes; bytes that the locale could not decode are preserved (PEP 383)."""
    return text.encode("utf-8", "surrogateescape")


SUFFIXES = {".npy", ".npz", ".json"}
# RuntimeError is an archive that is encrypted or packed in a way unknown here; MemoryError sizes that cannot be true.
_UNREADABLE = (OSError, EOFError, ValueError, BadZipFile, zlib.error, RuntimeError, MemoryError)


def read_value(name: str, place: str) -> object:
    """Read the value of an input from a file: all of it, or the entry under the input's name."""
    if place == STANDARD_INPUT or Path(place).suffix == ".json":
        document = _json(place)
        value: object = _named(document, name, place) if isinstance(document, dict) else document
        return value
    try:
        return _from_numpy(name, place)
    except _UNREADABLE as error:
        raise UsageError(f"{place} cannot be read as NumPy's arrays: {error}", remedy="name another file") from error


def _from_numpy(name: str, place: str) -> object:
    """Read the array of a .npy or .npz file; of several, only the one with the input's name."""
    import numpy as np

    loaded = np.load(place, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return loaded
    with loaded:
        value: object = loaded[loaded.files[0]] if len(loaded.files) == 1 else _named(loaded, name, place)
    if not isinstance(value, np.ndarray):
        raise ValueError("it holds another file")  # noqa: TRY004 - which NumPy gives as bytes
    return value


def _named(document: Mapping[str, object], name: str, place: str) -> object:
    if name not in document:
        raise UsageError(
            f"{place} holds no {name!r}",
            remedy=f"name another file: it holds {', '.join(sorted(document)) or 'nothing'}",
        )
    return document[name]


def read_document(place: str) -> dict[str, object]:
    """Read values by input name, or a KServe request, whose data may be flat."""
    document = _json(place)
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


def _json(place: str) -> Any:
    try:
        text = sys.stdin.read() if place == STANDARD_INPUT else Path(place).read_text(encoding="utf-8")
        return json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        where = "standard input" if place == STANDARD_INPUT else place
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{where} cannot be read as JSON: {reason}", remedy="give a file that holds JSON") from error


_SHAPE = re.compile(r"[1-9]\d*(x[1-9]\d*)*")


@dataclass(frozen=True)
class Typed:
    """Command line value that is not a file; its type depends on the input's dtype."""

    text: str


@dataclass(frozen=True)
class InputArguments:
    """Input arguments with all files read; the model is not queried yet.

    Args:
        values: by input.
        rows: texts, lines and files.
        shapes: of drawn inputs.
        draw: those that are not given.
    """

    values: Mapping[str, object]
    rows: Sequence[Rows]
    shapes: Mapping[str, tuple[int, ...]]
    draw: bool

    @property
    def is_empty(self) -> bool:
        """Whether no inputs were given."""
        return not (self.values or self.rows or self.draw)

    def feed(self, signature: Signature, sizes: Mapping[str, int]) -> dict[str, object]:
        """Build the inputs to send to a model.

        A value of one dim less than the input's is one sample, and gets its batch; a single number or text, all dims.

        Args:
            signature: what the model takes.
            sizes: the usual ones of axes, for drawn inputs.

        Raises:
            UsageError: nothing is given, or not as the model has it.
        """
        from plansmith.records.model import BATCH
        from plansmith.triton.client.request_inputs import drawn_feed

        if self.is_empty:
            raise UsageError(
                f"no input is given. The model has:\n{signature.describe()}", remedy=f"pass {_example(signature)}"
            )
        feed = self._argument_values(signature)
        if not self.draw:
            return feed
        shapes = shapes_of_arguments(signature, feed) | dict(self.shapes)
        return {**drawn_feed(signature, shapes=shapes, sizes={**sizes, BATCH: 1}), **feed}

    def names(self, signature: Signature, count: int) -> list[str]:
        """Return the label of each row: its text or file; none if there are several."""
        by_input: dict[str, list[str]] = {}
        for row_set in rows_by_input(signature, self.rows):
            by_input.setdefault(row_set.name, []).extend(row_set.shown)
        fitting = [names for names in by_input.values() if len(names) == count]
        return fitting[0] if len(fitting) == 1 else []

    def _argument_values(self, signature: Signature) -> dict[str, object]:
        strings = {tensor.name for tensor in signature.inputs if tensor.dtype == "string"}
        feed = {
            name: _typed(name, value.text, is_string=name in strings) if isinstance(value, Typed) else value
            for name, value in self.values.items()
        }
        batches = signature.max_batch_size > 0
        for tensor in signature.inputs:
            if tensor.name in feed:
                feed[tensor.name] = _add_batch(tensor, feed[tensor.name], batches=batches)
        raw = raw_feed(signature, self.rows)
        for name in raw:
            if name in feed:
                raise _twice(name)
        return {**feed, **raw}


def read_input_arguments(
    inputs: Sequence[str], document: str | None, rows: Sequence[Sequence[str]], shapes: Sequence[str], *, draw: bool
) -> InputArguments:
    """Read the input arguments and their files.

    Args:
        inputs: each NAME=VALUE; VALUE is a file (.npy, .npz, .json), - for JSON on standard input, JSON, numbers with
            commas between them, or of an input of strings the text itself.
        document: a file with the values of several inputs as JSON, by name or as a request of KServe's protocol.
        rows: texts, files of lines and files, as `read_rows` takes them.
        shapes: each NAME=SIZES.
        draw: the inputs that are not given.

    Raises:
        UsageError: another form, a file that cannot be read, an input that is given twice.
    """
    if shapes and not draw:
        raise UsageError("--shape is for drawn inputs", remedy="pass --random, or leave it out")
    texts, lines, files = rows
    places = [*(text.partition("=")[2] for text in inputs), *(place.rpartition("=")[2] for place in lines)]
    if [*places, document].count(STANDARD_INPUT) > 1:
        raise UsageError("standard input is to be read twice", remedy="give it once, and name files for the rest")
    read = read_rows(texts, lines, files)
    values = {} if document is None else read_document(document)
    for text in inputs:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--input {text!r} is not NAME=VALUE", remedy="write it like --input input_ids=1,2,3")
        if name in values:
            raise _twice(name)
        is_file = value == STANDARD_INPUT or Path(value).suffix in SUFFIXES
        values[name] = read_value(name, value) if is_file else Typed(value)
    return InputArguments(values, read, read_shapes(shapes), draw)


def require_inputs(signature: Signature, feed: Mapping[str, object]) -> None:
    """Check that no required input is missing, for a server that reports which inputs are optional.

    Raises:
        UsageError: one is; says how to give it.
    """
    from plansmith.triton.client.dtypes import format_dims
    from plansmith.triton.client.request_inputs import missing_inputs

    missing = [tensor for tensor in signature.inputs if tensor.name in missing_inputs(signature, feed)]
    if not missing or not feed.keys() <= {tensor.name for tensor in signature.inputs}:
        return  # the client tells of a wrong name with what it may be meant for
    message = "\n".join(f"input {t.name!r} is missing: it takes {t.dtype} {format_dims(t.dims)}" for t in missing)
    options = " ".join(f'--text {t.name}="…"' if t.dtype == "string" else f"--input {t.name}=VALUE" for t in missing)
    drawn = "" if any(t.dtype == "string" for t in missing) else ", or --random to have drawn what is not given"
    raise UsageError(f"{message}\nThe model has:\n{signature.describe()}", remedy=f"pass {options}, too{drawn}")


def _twice(name: str) -> UsageError:
    return UsageError(f"input {name!r} is given twice", remedy="give each input once")


def _example(signature: Signature) -> str:
    """Return an example command for a model."""
    needed = [tensor for tensor in signature.inputs if tensor.name not in signature.optional]
    strings = [tensor.name for tensor in needed if tensor.dtype == "string"]
    if len(strings) == len(needed) == 1:
        return '--text "…", --lines FILE or --file FILE'
    if strings and len(strings) == len(needed):
        return " ".join(f'--text {name}="…"' for name in strings)
    return "--input NAME=VALUE or --random"


def shapes_of_arguments(signature: Signature, feed: Mapping[str, object]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the given inputs, which drawn inputs follow; none for what the model will refuse."""
    import numpy as np

    from plansmith.triton.client.request_inputs import fits

    shapes = {}
    for tensor in signature.inputs:
        value: Any = feed.get(tensor.name)
        with suppress(ValueError):
            if value is not None and fits(tensor, np.shape(value)):
                shapes[tensor.name] = np.shape(value)
    return shapes


def read_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Parse the shapes of drawn inputs: each NAME=4x64, batch first.

    Raises:
        UsageError: another form.
    """
    shapes = {}
    for text in texts:
        name, _, shape = text.partition("=")
        if not name or not _SHAPE.fullmatch(shape):
            raise UsageError(f"--shape {text!r} is not NAME=SIZES", remedy="write it like --shape input_ids=4x64")
        shapes[name] = tuple(int(size) for size in shape.split("x"))
    return shapes


def _typed(name: str, text: str, *, is_string: bool) -> object:
    if is_string and not text.startswith(("[", '"')):
        return text
    for form in (text, f"[{text}]"):
        with suppress(ValueError, RecursionError):
            value: object = json.loads(form)
            return value
    raise UsageError(
        f"--input {name}={text} is neither a file nor numbers",
        remedy=f"write it like {name}=1,2,3 or {name}='[[1, 2], [3, 4]]', or name a .npy, .npz or .json file",
    )


def _add_batch(tensor: Tensor, value: Any, *, batches: bool) -> object:
    """Add the batch dim to a value; the client refuses non-arrays and values with other dims."""
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
