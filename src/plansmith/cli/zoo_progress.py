"""How a zoo goes, on standard error: a line for each finished entry, and a moving one for those at work."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from rich.text import Text

from plansmith.cli.progress import MovingLine
from plansmith.cli.streams import open_console
from plansmith.zoo.entries import Entry
from plansmith.zoo.rows import Row
from plansmith.zoo.running import Listener

_STYLES = {"right": "green", "wrong": "red", "failed": "red"}


class ZooProgress(Listener):
    """Shows what is being done; a context manager.

    Args:
        count: how many entries there are.
        quiet: show nothing.
    """

    def __init__(self, count: int, *, quiet: bool) -> None:
        self._console = open_console(stderr=True)
        self._line = MovingLine(self._console, quiet=quiet)
        self._count, self._quiet = count, quiet
        self._lock = threading.Lock()
        self._doing: dict[str, str] = {}
        self._finished = 0

    def __enter__(self) -> Self:
        self._line.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.__exit__(kind, value, trace)

    def doing(self, entry: Entry, text: str) -> None:
        """Update the moving line."""
        with self._lock:
            self._doing[entry.label] = text
            self._draw()

    def finished(self, row: Row, *, kept: bool) -> None:
        """Leave one line for a finished entry."""
        with self._lock:
            self._doing.pop(row.name, None)
            self._finished += 1
            if not self._quiet:
                how = "kept" if kept else f"{row.seconds:.1f} s"
                words = row.cause or row.problem
                line = Text.assemble(
                    (f"  {row.outcome:<7}", _STYLES[row.outcome]),
                    row.name,
                    (f"  {row.exporter or 'no graph'}, {row.moving} of {len(row.axes)} axes, {how}", "dim"),
                )
                self._console.print(line if row.outcome == "right" else line.append(f"  {words.splitlines()[0]}"))
            self._draw()

    def _draw(self) -> None:
        at_work = ", ".join(f"{name} ({text})" for name, text in self._doing.items())
        self._line.tell(f"{self._finished} of {self._count}: {at_work}")
