"""The table of a zoo in a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from plansmith.cli.text import printable, table
from plansmith.units import bytes_in_words, seconds_in_words
from plansmith.zoo.rows import Part, Row, Zoo
from plansmith.zoo.summary import share

_LONGEST_CAUSE = 100
_HEAD = ("entry", "exporter", "axes", "moving", "right", "shapes", "time", "size", "cause")


def table_lines(zoo: Zoo) -> list[str]:
    """A row for each entry, then what the list comes to."""
    bare = [f"bare {result.exporter}" for result in next((row.bare for row in zoo.rows if row.bare), ())]
    rows = [(*_HEAD[:-1], *bare, _HEAD[-1]), *(_cells(row, len(bare)) for row in zoo.rows)]
    return [*table(rows), "", *_summary_lines(zoo)]


def _cells(row: Row, bare: int) -> tuple[str, ...]:
    words = row.cause or row.problem
    cause = printable(words.splitlines()[0]) if words else ""
    results = ["right" if result.right else "wrong" for result in row.bare]
    return (
        row.name,
        row.exporter or "-",
        str(len(row.axes)),
        str(row.moving),
        {"right": "yes", "wrong": "no", "failed": "-"}[row.outcome],
        str(row.shapes),
        seconds_in_words(row.seconds),
        bytes_in_words(row.graph_bytes) if row.graph_bytes else "-",
        *(results or ["-"] * bare),
        cause if len(cause) <= _LONGEST_CAUSE else f"{cause[:_LONGEST_CAUSE]}…",
    )


def _summary_lines(zoo: Zoo) -> Iterator[str]:
    summary = zoo.summary
    parts = [*summary.kinds, *([summary.total] if len(summary.kinds) > 1 else []), *summary.bare]
    for part in parts:
        yield f"{part.kind}: {_share_words(part)}"
    yield f"in {seconds_in_words(summary.seconds)}; processor time {seconds_in_words(summary.cpu_seconds)}"


def _share_words(part: Part) -> str:
    known = f", {part.explained} more with a known cause" if part.explained else ""
    return (
        f"{part.right} of {part.entries} right ({share(part.right, part.entries):.1%}){known};"
        f" {part.moving} of {part.axes} axes move ({share(part.moving, part.axes):.1%})"
    )
