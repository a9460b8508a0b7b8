"""Rows with named columns: what every reader makes of its file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """One row: values by column, and where it stands ("reviews.csv:17"), for errors."""

    values: Mapping[str, Any]
    where: str


@dataclass(frozen=True)
class Table:
    """A file or folder that is open for reading.

    Args:
        name: of the file, for errors and words.
        columns: in the file's order.
        rows: yields the rows, with at least the named columns; raises SourceError with the place of a bad one.
        class_names: for the columns that hold class ids or names: the names in the order of the ids.
    """

    name: str
    columns: tuple[str, ...]
    rows: Callable[[Sequence[str]], Iterator[Row]]
    class_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
