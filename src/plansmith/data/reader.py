"""Data reader: yields samples one by one from a data location."""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from plansmith.config.data import IMAGE, LABEL, TEXT, TEXT_PAIR
from plansmith.data.labels import label_of
from plansmith.data.sample import Sample, Takes, changing, choose_columns, make_sample
from plansmith.data.tables import (
    SUFFIXES,
    Row,
    Table,
    read_arrays,
    read_images,
    read_json,
    read_lines,
    read_parquet,
    read_separated,
)
from plansmith.errors import SourceError, UsageError, first_line
from plansmith.records.model import Record
from plansmith.system.isolation import isolation_of_process

READERS = {
    ".txt": read_lines,
    ".csv": lambda path: read_separated(path, ","),
    ".tsv": lambda path: read_separated(path, "\t"),
    ".jsonl": read_json,
    ".json": read_json,
    ".parquet": read_parquet,
    ".npz": read_arrays,
}


def read_entry_point(name: str, folder: Path) -> Table:
    """Read the samples of `package.module:function`, each a mapping from columns to values.

    The first sample tells the columns, so that the function begins to work at once. The first reading of the rows goes
    on from there; every further one calls the function again.

    Args:
        name: the entry point.
        folder: stands first on the path while it is imported: that of the spec.

    Raises:
        UsageError: there is no such module or function.
        SourceError: it fails, yields nothing, or something that is no mapping.
    """
    with _on_path(folder):
        function = _function(name)
        begun = _function_rows(name, function)
        first = next(begun, None)
    if first is None:
        raise SourceError(f"{name} yields no samples", remedy='yield dicts such as {"text": …, "label": …}')

    readings = [chain([first], begun)]

    def rows(_: Sequence[str]) -> Iterator[Row]:
        with _on_path(folder):
            yield from readings.pop() if readings else _function_rows(name, function)

    return Table(name, tuple(first.values), rows)


def _function(name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        own = module_name == missing or module_name.startswith(f"{missing}.")
        raise UsageError(
            f"entry_point: there is no module {missing!r}" + ("" if own else f", which {module_name} imports"),
            remedy="put it beside the spec, or install it" if own else f"pip install {missing}",
        ) from error
    except Exception as error:
        raise _failed(name, error, "cannot be imported") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        functions = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise UsageError(
            f"entry_point: {module_name} has no function {attribute!r}",
            remedy=f"it has {', '.join(sorted(functions)) or 'none'}",
        )
    return function


def _function_rows(name: str, function: Any) -> Iterator[Row]:
    for number, values in enumerate(_yielded(name, function)):
        if not isinstance(values, Mapping) or not values:
            raise SourceError(
                f"{name}, sample {number} is a {type(values).__name__}, not a mapping from columns to values",
                remedy='yield dicts such as {"text": …, "label": …}',
            )
        yield Row(values, f"{name}, sample {number}")


def _yielded(name: str, function: Any) -> Iterator[Any]:
    """Yield what the user's function yields; exceptions in it are reported as its own."""
    try:
        yield from function()
    except Exception as error:
        raise _failed(name, error, "fails") from error


def _failed(name: str, error: Exception, how: str) -> SourceError:
    """Return an error for an exception in user code, with the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else name
    remedy = "mend it, and run it by hand"
    if isolation_of_process() is not None and isinstance(error, OSError):
        remedy += "; with `isolate: false` it may use the network and your credentials"
    return SourceError(f"{name} {how}: {type(error).__name__}: {first_line(error)} ({place})", remedy=remedy)


@contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))


class DataPlace(Record):
    """Data location on this machine, after any download.

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
    """Open data: its name, the columns read, and the samples.

    `class_names`: of the label column, in the order of the ids. `samples` begin anew with every iteration.
    """

    description: str
    columns: Mapping[str, str]
    class_names: tuple[str, ...]
    samples: Iterable[Sample]


def open_data(
    place: DataPlace, entry_point: str, columns: Mapping[str, str], takes: Takes, *, labelled: bool = True
) -> Reading:
    """Open data and find the column of each role.

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
    description = ", ".join(f"{column} as {role}" if column != role else role for role, column in chosen.items())
    return Reading(f"{place.words} ({description})", chosen, names, _Samples(tables, chosen, Path(place.folder)))


def names_images(path: Path) -> bool:
    """Whether a text file lists image files stored elsewhere, judged by its first row.

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
    """Run an entry point to its end and return the digest of everything it yields, in order.

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
    """Return the table with verified rows: reading raises at the end if they do not match `digest_of_samples`."""

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        hasher = hashlib.sha256()
        for row in table.rows(columns):
            hasher.update(_digest_of_row(row))
            yield row
        if hasher.hexdigest() != digest:
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
    """All samples of several tables; each iteration reads them again."""

    tables: Sequence[Table]
    chosen: Mapping[str, str]
    folder: Path

    def __iter__(self) -> Iterator[Sample]:
        return _samples(self.tables, self.chosen, self.folder)


def _samples(tables: Sequence[Table], chosen: Mapping[str, str], folder: Path) -> Iterator[Sample]:
    """Yield all samples, numbered consecutively."""
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
    """Return the value of one role in a valid form.

    Raises:
        SourceError: it is missing, or of another form.
    """
    value = row.values.get(column)
    if value is None:
        raise SourceError(
            f"{row.where} has no value for {column!r}, the {role}", remedy="give it one, or take the row out"
        )
    if role in {TEXT, TEXT_PAIR}:
        content = value.tolist() if hasattr(value, "tolist") else value
        is_words = isinstance(content, list | tuple) and all(isinstance(word, str) for word in content) and role == TEXT
        if isinstance(value, Path):
            raise SourceError(f"{row.where}: the model takes text, and these are images", remedy="name other data")
        if not isinstance(content, str) and not is_words:
            raise SourceError(
                f"{row.where}: {column!r} is a {type(value).__name__}, not text",
                remedy="under `columns`, name the column that holds the text",
            )
        return content if isinstance(content, str) else list(content)
    if role == IMAGE and isinstance(value, str):
        return _image_path(value, row, folder)
    return value if role == IMAGE else _numbers(value, row, column)


def _image_path(value: str, row: Row, folder: Path) -> Path:
    """Return the image path that a text row names, relative to its file's folder.

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
    """Return an array of numbers; text holding a number or a JSON list is parsed, as CSV has only text."""
    import json

    import numpy as np

    try:
        array = np.asarray(json.loads(value) if isinstance(value, str) else value)
    except (ValueError, RecursionError) as error:
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
    """Return a value of any column in a form that can be hashed."""
    if isinstance(value, str | bytes | Path | int | float | bool | list | tuple | dict) or value is None:
        return value
    if hasattr(value, "tobytes"):
        return value
    raise SourceError(
        f"{row.where} yields a {type(value).__name__}",
        remedy="yield text, numbers, arrays, lists, or images as paths, bytes or PIL has them",
    )
