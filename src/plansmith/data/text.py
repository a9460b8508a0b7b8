"""Text lines, CSV, TSV and JSON lines. What is wrong is told with file and line."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from plansmith.config.data import TEXT
from plansmith.data.table import Row, Table
from plansmith.errors import SourceError

# Python's own limit, 128 KiB, is shorter than a long document.
_LONGEST_FIELD = 64 << 20
_SHOWN = 60


def read_lines(path: Path) -> Table:
    """One text a line; blank lines are none."""

    def rows(_: Sequence[str]) -> Iterator[Row]:
        for number, line in _decoded(path):
            if line.strip():
                yield Row({TEXT: line.strip()}, f"{path}:{number}")

    return Table(path.name, (TEXT,), rows)


def read_separated(path: Path, separator: str) -> Table:
    """CSV or TSV with a header; quotes hide separators and line ends.

    Raises:
        SourceError: there is no header, or it names a column twice.
    """
    csv.field_size_limit(_LONGEST_FIELD)
    header = next((fields for _, fields in _fields(path, separator)), [])
    if not header:
        raise SourceError(f"{path} is empty", remedy="put a header with the columns' names into its first line")
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise SourceError(f"{path}:1 names {', '.join(map(repr, repeated))} twice", remedy="give each column a name")

    def rows(_: Sequence[str]) -> Iterator[Row]:
        found = _fields(path, separator)
        next(found)
        for number, fields in found:
            if len(fields) != len(header):
                raise SourceError(
                    f"{path}:{number} has {len(fields)} field(s) where the header has {len(header)}",
                    remedy=f"put quotes around values that hold {separator!r}, or mend that line",
                )
            yield Row(dict(zip(header, fields, strict=True)), f"{path}:{number}")

    return Table(path.name, tuple(header), rows)


def read_json(path: Path) -> Table:
    """JSON lines, or one list of objects; the first object tells the columns.

    Raises:
        SourceError: the file is empty, or its first object cannot be read.
    """

    def rows(_: Sequence[str]) -> Iterator[Row]:
        for where, value in _objects(path):
            if not isinstance(value, dict):
                raise SourceError(
                    f"{where} is no JSON object: {_shortened(value)}", remedy='write one {"text": …} a line'
                )
            yield Row(value, where)

    first = next(rows(()), None)
    if first is None:
        raise SourceError(f"{path} is empty", remedy='write one {"text": …} a line')
    return Table(path.name, tuple(first.values), rows)


def _decoded(path: Path) -> Iterator[tuple[int, str]]:
    """The lines with their numbers, ends included."""
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                try:
                    yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise SourceError(
                        f"{path}:{number} is not UTF-8: {error.reason} at byte {error.start}",
                        remedy=f"write it as UTF-8: iconv -f latin1 -t utf-8 {path.name} > utf8-{path.name}",
                    ) from error
    except OSError as error:
        raise SourceError(
            f"cannot read {path}: {error.strerror}", remedy="check the path and its permissions"
        ) from error


def _fields(path: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    """The records that are not blank, with the number of the line that each ends in."""
    reader = csv.reader((line for _, line in _decoded(path)), delimiter=separator, strict=True)
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise SourceError(
                f"{path}:{reader.line_num} cannot be split into fields: {error}", remedy="mend the quotes in that line"
            ) from error
        if fields:
            yield reader.line_num, fields


def _objects(path: Path) -> Iterator[tuple[str, Any]]:
    """The values of a JSON file, each with its place."""
    is_first = True
    for number, line in _decoded(path):
        if not line.strip():
            continue
        if is_first and line.lstrip().startswith("["):
            yield from _listed(path)
            return
        is_first = False
        try:
            value = json.loads(line)
        except ValueError as error:
            raise SourceError(
                f"{path}:{number} is not JSON: {error}: {_shortened(line)}", remedy="write one whole object a line"
            ) from error
        yield f"{path}:{number}", value


def _listed(path: Path) -> Iterator[tuple[str, Any]]:
    text = "".join(line for _, line in _decoded(path))
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise SourceError(f"{path}:{error.lineno} is not JSON: {error.msg}", remedy="mend that line") from error
    for number, value in enumerate(values):
        yield f"{path}, item {number}", value


def _shortened(value: Any) -> str:
    text = str(value).strip()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
