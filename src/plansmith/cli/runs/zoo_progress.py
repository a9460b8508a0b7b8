"""Progress display of a zoo on standard error: a line per finished entry, and a moving line for running ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import TracebackType

from rich.text import Text

from plansmith.cli.compile.progress import WithMovingLine
from plansmith.cli.output import printable, table
from plansmith.fleet.zoo.entries import ZooEntry
from plansmith.fleet.zoo.records import AxisFinding, Part, Zoo, ZooRow, share
from plansmith.fleet.zoo.run import Listener
from plansmith.formatting import format_bytes, format_seconds

_HEAD = ("entry", "answers", "exporter", "axes move", "shapes", "time", "size")
_LESS_NEEDED = ("size", "shapes", "time", "exporter")
_GAP = 2
_LONGEST_NOTE = 200

_STYLES = {"right": "green", "wrong": "red", "failed": "red"}


def table_lines(zoo: Zoo, width: int = 0) -> list[str]:
    """Return a row per entry with its notes below, then the totals.

    Args:
        zoo: its rows.
        width: of a terminal, into which the columns fit then; those that are needed least are left out.
    """
    bare = [f"bare {result.exporter}" for result in next((row.bare for row in zoo.rows if row.bare), ())]
    head = (*_HEAD, *bare)
    columns = list(zip(head, *(_cells(row, len(bare)) for row in zoo.rows), strict=True))
    first, *lines = table(list(zip(*_fitted(columns, width), strict=True)))
    body = (line for row, shown in zip(zoo.rows, lines, strict=True) for line in (shown, *_note_lines(row)))
    return [first, *body, "", *_summary_lines(zoo)]


def notes(row: ZooRow) -> Iterator[str]:
    """Return the notes on a row, each in one line: why it fails, and which axes are fixed."""
    if row.why:
        yield _cut(row.why)
    for axis in _fixed(row):
        yield f"{axis.name} is fixed at {axis.fixed_at}"


def _note_lines(row: ZooRow) -> Iterator[str]:
    if row.why:
        reference_note = f" ({row.reference})" if row.reference else ""
        yield f"    {row.outcome}: {_cut(row.why)}{reference_note}"
    for axis in _fixed(row):
        yield f"    {_cut(f'{axis.name} is {axis.problem}')}"
    if row.log:
        yield f"    log: {printable(row.log)}"


def _fixed(row: ZooRow) -> list[AxisFinding]:
    """Return the axes that the graph has fixed, except those that explain why the row is not right."""
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
    """Return the columns that fit the terminal width; long names are truncated if even few are too wide."""
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
    explanation = f", {part.explained} more with a known cause" if part.explained else ""
    moving = f" ({share(part.moving, part.axes):.1%})" if part.axes else ""
    return (
        f"{part.right} of {part.entries} right ({share(part.right, part.entries):.1%}){explanation};"
        f" {part.moving} of {part.axes} axes move{moving}"
    )


class ZooProgress(WithMovingLine, Listener):
    """Progress display of a zoo run; a context manager.

    Args:
        count: how many entries there are.
        quiet: show nothing.
    """

    def __init__(self, count: int, *, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self._count = count
        self._lock = threading.Lock()
        self._doing: dict[str, str] = {}
        self._finished = 0

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the moving line; after an interrupt, report how far the run came."""
        super().__exit__(kind, value, trace)
        if kind is KeyboardInterrupt and not self._quiet:
            self._console.print(f"  {self._finished} of {self._count} entries are finished")

    def doing(self, entry: ZooEntry, text: str) -> None:
        """Update the moving line."""
        with self._lock:
            self._doing[entry.label] = text
            self._draw()

    def finished(self, row: ZooRow, *, kept: bool) -> None:
        """Print a permanent line for a finished entry."""
        with self._lock:
            self._doing.pop(row.name, None)
            self._finished += 1
            if not self._quiet:
                self._console.print(_line(row, is_cached=kept))
            self._draw()

    def _draw(self) -> None:
        at_work = ", ".join(f"{name} ({text})" for name, text in self._doing.items())
        self._line.tell(f"{self._finished} of {self._count}: {at_work}")


def _line(row: ZooRow, *, is_cached: bool) -> Text:
    facts = [f"{row.exporter}, {row.moving} of {len(row.axes)} axes move"] if row.exporter else []
    facts.append("kept" if is_cached else f"{row.seconds:.1f} s")
    line = Text.assemble((f"  {row.outcome:<7}", _STYLES[row.outcome]), row.name, (f"  {', '.join(facts)}", "dim"))
    for note in notes(row):
        line.append(f"; {note}", "yellow" if row.outcome == "right" else "")
    return line
