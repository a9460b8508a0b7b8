"""What people have, as `plansmith infer` takes it: texts, the lines of a file, files of any kind; a row for each."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.errors import UsageError, first_line

if TYPE_CHECKING:
    from plansmith.records.model import Tensor
    from plansmith.triton.client import Signature

STANDARD_INPUT = "-"

_STRING, _BYTES = "string", "uint8"
_CLOSE = 0.8


@dataclass(frozen=True)
class Rows:
    """Values for one input, as they were given.

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
    """All that was given by --text, --lines and --file, read.

    Raises:
        UsageError: a file that cannot be read, that is a folder or empty, or lines that are no UTF-8.
    """
    return [
        *(Rows("--text", "", (_bytes_of(text),), (text,)) for text in texts),
        *(_read_lines(given) for given in lines),
        *(_read_file(given) for given in files),
    ]


def raw_feed(signature: Signature, rows: Sequence[Rows]) -> dict[str, object]:
    """The rows as values of the model's inputs.

    Args:
        signature: what the model takes.
        rows: from `read_rows`; one row alone goes with each row of the others.

    Raises:
        UsageError: an input that the model does not have, none or several that could be meant, different numbers of
            rows.
    """
    by_input: dict[str, list[bytes]] = {}
    for one in rows_by_input(signature, rows):
        by_input.setdefault(one.name, []).extend(one.values)
    count = max(map(len, by_input.values()), default=0)
    if any(len(values) not in {1, count} for values in by_input.values()):
        told = ", ".join(f"{name} {len(values)}" for name, values in by_input.items())
        raise UsageError(
            f"the inputs have different numbers of rows: {told}",
            remedy="give each as many, or a single one, which goes with all rows of the others",
        )
    tensors = {tensor.name: tensor for tensor in signature.inputs}
    return {
        name: _array(tensors[name], values * count if len(values) == 1 else values) for name, values in by_input.items()
    }


def rows_by_input(signature: Signature, rows: Sequence[Rows]) -> list[Rows]:
    """The same rows, each with the name of its input; errors as for `raw_feed`."""
    return [_placed(signature, one) for one in rows]


def _placed(signature: Signature, rows: Rows) -> Rows:
    """The rows with the input that takes them."""
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
            f"the model takes no text and no bytes, as {rows.option} gives them. It has:\n{signature.words()}",
            remedy="pass --input NAME=VALUE",
        )
    raise UsageError(
        f"the model has several inputs that {rows.option} could be for: {', '.join(names)}",
        remedy=f"name the one that is meant: {rows.option} {names[0]}=…",
    )


def _takers(signature: Signature, rows: Rows) -> Iterator[Tensor]:
    """The inputs that take text, or bytes; those of a file also as numbers where the model takes no strings at all."""
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
    """A text with the input that stands before its "=", if one does; most texts with such a sign are only text."""
    before, sign, text = rows.shown[0].partition("=")
    known = [tensor.name for tensor in signature.inputs]
    is_meant = before in known or (before.isidentifier() and difflib.get_close_matches(before, known, 1, _CLOSE))
    if not sign or not (is_meant or (before.isidentifier() and len(names) > 1)):
        return rows
    return replace(rows, name=before, values=(_bytes_of(text),), shown=(text,))


def _refused(signature: Signature, rows: Rows, names: Sequence[str]) -> UsageError:
    tensor = next((one for one in signature.inputs if one.name == rows.name), None)
    if tensor is not None:
        return UsageError(
            f"input {rows.name!r} takes {tensor.dtype}, and {rows.option} gives text or bytes",
            remedy=f"pass --input {rows.name}=VALUE",
        )
    close = difflib.get_close_matches(rows.name, names, 1)
    hint = f"; {close[0]!r} is meant, perhaps" if close else ""
    plain = f", or where {rows.name}= is text: --text {(close or names)[0]}={rows.name}=…" if names else ""
    return UsageError(
        f"there is no input {rows.name!r}{hint}. The model has:\n{signature.words()}",
        remedy=f"name one of its inputs{plain if rows.option == '--text' else ''}",
    )


def _array(tensor: Tensor, values: Sequence[bytes]) -> object:
    """As many rows as values, in the dims of the input; what does not fit them stays for the client to refuse."""
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


def _read_lines(given: str) -> Rows:
    name, place = _named_place(given)
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


def _read_file(given: str) -> Rows:
    name, place = _named_place(given)
    content = _content("--file", place)
    if not content:
        raise UsageError(f"{place} is empty", remedy="name a file that holds something")
    return Rows("--file", name, (content,), (place,))


def _named_place(given: str) -> tuple[str, str]:
    """The input's name, or none, and the file: a file that is there under all of the words is meant as it is."""
    name, sign, place = given.partition("=")
    if not sign or not name or Path(given).exists():
        return "", given
    return name, place if place == STANDARD_INPUT else str(Path(place).expanduser())


def _content(option: str, place: str) -> bytes:
    path = Path(place)
    try:
        if path.is_dir():
            raise UsageError(f"{place} is a folder", remedy=f"pass {option} for each file that is meant")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else first_line(error)
        raise UsageError(f"{place} cannot be read: {said}", remedy="name a file that is there and readable") from error


def _standard_input() -> bytes:
    return b"" if sys.stdin is None else sys.stdin.buffer.read()


def _bytes_of(text: str) -> bytes:
    """An argument as its bytes; one that the locale could not read keeps them (PEP 383)."""
    return text.encode("utf-8", "surrogateescape")
