"""The table of a zoo in a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from plansmith.cli.text import printable, table
from plansmith.fleet.zoo.records import AxisFinding, Part, Zoo, ZooRow
from plansmith.fleet.zoo.summary import share
from plansmith.formatting import format_bytes, format_seconds

_HEAD = ("entry", "answers", "exporter", "axes move", "shapes", "time", "size")
_LESS_NEEDED = ("size", "shapes", "time", "exporter")
_GAP = 2
_LONGEST_NOTE = 200


def table_lines(zoo: Zoo, width: int = 0) -> list[str]:
    """A row for each entry, with what is to be said of it below, then what the list comes to.

    Args:
        zoo: its rows.
        width: of a terminal, into which the columns fit then; those that are needed least are left out.
    """
    bare = [f"bare {result.exporter}" for result in next((row.bare for row in zoo.rows if row.bare), ())]
    head = (*_HEAD, *bare)
    columns = list(zip(head, *(_cells(row, len(bare)) for row in zoo.rows), strict=True))
    first, *lines = table(list(zip(*_fitted(columns, width), strict=True)))
    told = (line for row, shown in zip(zoo.rows, lines, strict=True) for line in (shown, *_note_lines(row)))
    return [first, *told, "", *_summary_lines(zoo)]


def notes(row: ZooRow) -> Iterator[str]:
    """What is to be said of a row, each in one line: why it is not right, and which axes are fixed."""
    if row.why:
        yield _cut(row.why)
    for axis in _fixed(row):
        yield f"{axis.name} is fixed at {axis.fixed_at}"


def _note_lines(row: ZooRow) -> Iterator[str]:
    if row.why:
        known = f" ({row.reference})" if row.reference else ""
        yield f"    {row.outcome}: {_cut(row.why)}{known}"
    for axis in _fixed(row):
        yield f"    {_cut(f'{axis.name} is {axis.problem}')}"
    if row.log:
        yield f"    log: {printable(row.log)}"


def _fixed(row: ZooRow) -> list[AxisFinding]:
    """The axes that the graph has fixed, but for those that are why the row is not right."""
    return [axis for axis in row.fixed if axis.problem not in row.problem]


def _cut(text: str) -> str:
    shown = printable(text)
    return shown if len(shown) <= _LONGEST_NOTE else f"{shown[:_LONGEST_NOTE]}…"


def _cells(row: ZooRow, bare: int) -> tuple[str, ...]:
    results = ["right" if result.right else "wrong" for result in row.bare]
    return (
        row.name,
        row.outcome if row.outcome != "failed" else "none",
        row.exporter or "-",
        f"{row.moving} of {len(row.axes)}" if row.axes else "-",
        str(row.shapes) if row.shapes else "-",
        format_seconds(row.seconds),
        format_bytes(row.graph_bytes) if row.graph_bytes else "-",
        *(results or ["-"] * bare),
    )


def _fitted(columns: list[tuple[str, ...]], width: int) -> list[tuple[str, ...]]:
    """The columns that fit into a width of a terminal; long names are cut where even few are too wide."""
    for name in ("", *_LESS_NEEDED):
        columns = [column for column in columns if column[0] != name]
        beyond = sum(max(map(len, column)) + _GAP for column in columns) - _GAP - width
        if not width or beyond <= 0:
            return columns
    names, *others = columns
    longest = max(max(map(len, names)) - beyond, 1)
    return [tuple(n if len(n) <= longest else f"{n[: longest - 1]}…" for n in names), *others]


def _summary_lines(zoo: Zoo) -> Iterator[str]:
    summary = zoo.summary
    parts = [*summary.kinds, *([summary.total] if len(summary.kinds) > 1 else []), *summary.bare]
    for part in parts:
        yield f"{part.kind}: {_format_share(part)}"
    yield f"in {format_seconds(summary.seconds)}; processor time {format_seconds(summary.cpu_seconds)}"


def _format_share(part: Part) -> str:
    known = f", {part.explained} more with a known cause" if part.explained else ""
    moving = f" ({share(part.moving, part.axes):.1%})" if part.axes else ""
    return (
        f"{part.right} of {part.entries} right ({share(part.right, part.entries):.1%}){known};"
        f" {part.moving} of {part.axes} axes move{moving}"
    )
