"""From a place of data to samples, one after the other."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from plansmith.config.data import IMAGE, LABEL, TEXT, TEXT_PAIR
from plansmith.data.arrays import read_arrays
from plansmith.data.columns import Takes, choose_columns
from plansmith.data.entry_point import read_entry_point
from plansmith.data.images import SUFFIXES, read_images
from plansmith.data.labels import label_of
from plansmith.data.parquet import read_parquet
from plansmith.data.sample import Sample, changing, make_sample
from plansmith.data.table import Row, Table
from plansmith.data.text import read_json, read_lines, read_separated
from plansmith.errors import SourceError, UsageError
from plansmith.records.model import Record

READERS = {
    ".txt": read_lines,
    ".csv": lambda path: read_separated(path, ","),
    ".tsv": lambda path: read_separated(path, "\t"),
    ".jsonl": read_json,
    ".json": read_json,
    ".parquet": read_parquet,
    ".npz": read_arrays,
}


class DataPlace(Record):
    """Where data lie, once they are here.

    `files` are relative to `folder`; for an entry point there are none, and the folder is the spec's. `digest`: of
    their contents, empty for an entry point, whose samples nobody knows before it has run. `words` name the data.
    """

    kind: Literal["files", "images", "entry_point"]
    folder: str
    files: tuple[str, ...]
    digest: str
    revision: str | None
    words: str


@dataclass(frozen=True)
class Reading:
    """Data that are open: how they are called, which columns are read, and the samples.

    `class_names`: of the label column, in the order of the ids. `samples` begin anew with every iteration.
    """

    words: str
    columns: Mapping[str, str]
    class_names: tuple[str, ...]
    samples: Iterable[Sample]


def open_data(
    place: DataPlace, entry_point: str, columns: Mapping[str, str], takes: Takes, *, labelled: bool = True
) -> Reading:
    """Open data and find out which columns hold what.

    Args:
        place: where they lie.
        entry_point: the function that yields them, where there is one.
        columns: what the spec says about columns.
        takes: what the model can be fed with.
        labelled: whether labels are read; else a row may lack its own.

    Raises:
        SourceError: a file cannot be read; or, from the samples, an entry point yields others than its digest says.
        UsageError: wrong columns.
        EnvironmentFault: the library that reads them is not installed.
    """
    tables = _tables(place, entry_point)
    first = tables[0]
    chosen = choose_columns(first.columns, columns, takes, first.name)
    if not labelled:
        chosen.pop(LABEL, None)
    for table in tables[1:]:
        missing = [column for column in chosen.values() if column not in table.columns]
        if missing:
            raise SourceError(
                f"{table.name} has no column {', '.join(missing)}, which {first.name} has",
                remedy=f"its columns are {', '.join(table.columns)}: give all files the same",
            )
    names = first.class_names.get(chosen.get(LABEL, ""), ())
    taken = ", ".join(f"{column} as {role}" if column != role else role for role, column in chosen.items())
    return Reading(f"{place.words} ({taken})", chosen, names, _Samples(tables, chosen, Path(place.folder)))


def names_images(path: Path) -> bool:
    """Whether a file of text names images that lie elsewhere, as far as its first row tells.

    Raises:
        SourceError: the file cannot be read.
    """
    if path.suffix.lower() not in {".csv", ".tsv", ".json", ".jsonl"}:
        return False
    table = READERS[path.suffix.lower()](path)
    first = next(iter(table.rows(table.columns)), None)
    values = first.values.values() if first else ()
    return any(isinstance(v, str) and Path(v).suffix.lower() in SUFFIXES for v in values)


def digest_of_samples(place: DataPlace, entry_point: str) -> str:
    """Run an entry point to its end: the digest of all that it yields, in its order.

    Raises:
        SourceError: it fails.
        UsageError: there is no such function.
    """
    digest = hashlib.sha256()
    table = read_entry_point(entry_point, Path(place.folder))
    for row in table.rows(table.columns):
        digest.update(_digest_of_row(row))
    return digest.hexdigest()


def _held_to(table: Table, digest: str) -> Table:
    """The same table, whose rows raise at their end where they are not those of `digest_of_samples`."""

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        found = hashlib.sha256()
        for row in table.rows(columns):
            found.update(_digest_of_row(row))
            yield row
        if found.hexdigest() != digest:
            raise changing(table.name)

    return replace(table, rows=rows)


def _digest_of_row(row: Row) -> bytes:
    values = {str(k): _comparable(v, row) for k, v in row.values.items()}
    return make_sample(0, values).digest.encode()


def _tables(place: DataPlace, entry_point: str) -> list[Table]:
    folder = Path(place.folder)
    if place.kind == "entry_point":
        table = read_entry_point(entry_point, folder)
        return [_held_to(table, place.digest) if place.digest else table]
    paths = [folder / name for name in place.files]
    if place.kind == "images":
        return [read_images(folder, paths)]
    return [READERS[path.suffix.lower()](path) for path in paths]


@dataclass(frozen=True)
class _Samples:
    """All samples of some tables, read anew by every iteration."""

    tables: Sequence[Table]
    chosen: Mapping[str, str]
    folder: Path

    def __iter__(self) -> Iterator[Sample]:
        return _samples(self.tables, self.chosen, self.folder)


def _samples(tables: Sequence[Table], chosen: Mapping[str, str], folder: Path) -> Iterator[Sample]:
    """All samples, numbered through."""
    label = chosen.get(LABEL)
    inputs = {role: column for role, column in chosen.items() if role != LABEL}
    number = 0
    for table in tables:
        names = table.class_names.get(label or "", ())
        for row in table.rows(tuple(dict.fromkeys(chosen.values()))):
            values = {role: _value(role, row, column, folder) for role, column in inputs.items()}
            try:
                yield make_sample(number, values, label_of(row, label, names) if label else None)
            except OSError as error:
                raise SourceError(
                    f"{row.where}: cannot read {error.filename}: {error.strerror}",
                    remedy="see that the file is there and readable, or take the row out",
                ) from error
            number += 1


def _value(role: str, row: Row, column: str, folder: Path) -> Any:
    """The value of one role, in a form that it can have.

    Raises:
        SourceError: it is missing, or of another form.
    """
    value = row.values.get(column)
    if value is None:
        raise SourceError(
            f"{row.where} has no value for {column!r}, the {role}", remedy="give it one, or take the row out"
        )
    if role in {TEXT, TEXT_PAIR}:
        words = value.tolist() if hasattr(value, "tolist") else value
        is_words = isinstance(words, list | tuple) and all(isinstance(word, str) for word in words) and role == TEXT
        if isinstance(value, Path):
            raise SourceError(f"{row.where}: the model takes text, and these are images", remedy="name other data")
        if not isinstance(words, str) and not is_words:
            raise SourceError(
                f"{row.where}: {column!r} is a {type(value).__name__}, not text",
                remedy="under `columns`, name the column that holds the text",
            )
        return words if isinstance(words, str) else list(words)
    if role == IMAGE and isinstance(value, str):
        return _image_path(value, row, folder)
    return value if role == IMAGE else _numbers(value, row, column)


def _image_path(value: str, row: Row, folder: Path) -> Path:
    """The image that a row of text names, from its file's own folder on.

    Raises:
        SourceError: there is none; or it lies outside, where no digest of the data covers it.
    """
    path = Path(os.path.normpath(folder / value))
    if not path.is_relative_to(folder):
        raise SourceError(f"{row.where}: the image {path} lies outside of {folder}", remedy=f"put it below {folder}")
    if path.suffix.lower() not in SUFFIXES or not path.is_file():
        raise SourceError(f"{row.where}: there is no image {path}", remedy=f"paths start from {folder}")
    return path


def _numbers(value: Any, row: Row, column: str) -> Any:
    """An array of numbers; text that holds one number or a JSON list of them, as CSV has no others."""
    import json

    import numpy as np

    try:
        array = np.asarray(json.loads(value) if isinstance(value, str) else value)
    except ValueError as error:
        raise _no_numbers(row, column) from error
    if array.dtype.kind not in "biuf":
        raise _no_numbers(row, column)
    return array


def _no_numbers(row: Row, column: str) -> UsageError:
    return UsageError(
        f"data: {row.where}: {column!r} holds no numbers, and the input takes nothing else",
        remedy="map another column to it under `columns`",
    )


def _comparable(value: Any, row: Row) -> Any:
    """A value of any column in a form that has a digest."""
    if isinstance(value, str | bytes | Path | int | float | bool | list | tuple | dict) or value is None:
        return value
    if hasattr(value, "tobytes"):
        return value
    raise SourceError(
        f"{row.where} yields a {type(value).__name__}",
        remedy="yield text, numbers, arrays, lists, or images as paths, bytes or PIL has them",
    )
