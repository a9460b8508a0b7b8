"""How a zoo goes, on standard error: a line for each finished entry, and a moving one for those at work."""

from __future__ import annotations

import threading
from types import TracebackType

from rich.text import Text

from plansmith.cli.compile.progress import WithMovingLine
from plansmith.cli.runs.zoo_table import notes
from plansmith.fleet.zoo.entries import ZooEntry
from plansmith.fleet.zoo.records import ZooRow
from plansmith.fleet.zoo.run import Listener

_STYLES = {"right": "green", "wrong": "red", "failed": "red"}


class ZooProgress(WithMovingLine, Listener):
    """Shows what is being done; a context manager.

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
        """End the moving line; after an interrupt, say how far it came."""
        super().__exit__(kind, value, trace)
        if kind is KeyboardInterrupt and not self._quiet:
            self._console.print(f"  {self._finished} of {self._count} entries are finished")

    def doing(self, entry: ZooEntry, text: str) -> None:
        """Update the moving line."""
        with self._lock:
            self._doing[entry.label] = text
            self._draw()

    def finished(self, row: ZooRow, *, kept: bool) -> None:
        """Leave one line for a finished entry."""
        with self._lock:
            self._doing.pop(row.name, None)
            self._finished += 1
            if not self._quiet:
                self._console.print(_line(row, kept=kept))
            self._draw()

    def _draw(self) -> None:
        at_work = ", ".join(f"{name} ({text})" for name, text in self._doing.items())
        self._line.tell(f"{self._finished} of {self._count}: {at_work}")


def _line(row: ZooRow, *, kept: bool) -> Text:
    facts = [f"{row.exporter}, {row.moving} of {len(row.axes)} axes move"] if row.exporter else []
    facts.append("kept" if kept else f"{row.seconds:.1f} s")
    line = Text.assemble((f"  {row.outcome:<7}", _STYLES[row.outcome]), row.name, (f"  {', '.join(facts)}", "dim"))
    for note in notes(row):
        line.append(f"; {note}", "yellow" if row.outcome == "right" else "")
    return line
