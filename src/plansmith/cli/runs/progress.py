"""How flow runs go, on standard error: lines of their logs, and what they are doing now in a moving line."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from plansmith.cli.compile.progress import WithMovingLine
from plansmith.cli.text import printable
from plansmith.flows.runs.watching import Watcher

if TYPE_CHECKING:
    from uuid import UUID

    from plansmith.flows.runs.endings import RunEnded
    from plansmith.flows.runs.submitting import SubmittedRun

_STYLES = ((logging.ERROR, "red"), (logging.WARNING, "yellow"))


class RunProgress(WithMovingLine, Watcher):
    """Shows flow runs; a context manager.

    Args:
        runs: those that are followed; of several, each line begins with the run's name.
        quiet: show notices only.

    Attributes:
        endings: of those that have ended.
    """

    def __init__(self, runs: Sequence[SubmittedRun], *, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self.endings: list[RunEnded] = []
        self._several = len(runs) > 1
        self._width = max((len(run.name) for run in runs), default=0)
        self._names = {run.id: run.name for run in runs}
        self._doing: dict[UUID, str] = {}

    def state(self, run: SubmittedRun, words: str) -> None:
        """Leave a line: a run changes its state only a few times."""
        self._doing[run.id] = words
        self._print(run, words, "cyan")

    def step(self, run: SubmittedRun, names: Sequence[str]) -> None:
        """Say in the moving line which steps are at work."""
        self._doing[run.id] = ", ".join(names) or "running"
        self._draw()

    def line(self, run: SubmittedRun, level: int, text: str) -> None:
        """Leave a line of the log as it is."""
        self._print(run, text, next((style for least, style in _STYLES if level >= least), ""))

    def ended(self, ended: RunEnded) -> None:
        """Forget what a run was doing."""
        self.endings.append(ended)
        self._doing.pop(ended.run.id, None)
        if self._several:
            self._print(ended.run, ended.words, "")
        self._draw()

    def notice(self, text: str) -> None:
        """Say what is unusual, in whatever surroundings."""
        self._console.print(f"plansmith: {text}", style="yellow", markup=False)

    def _print(self, run: SubmittedRun, text: str, style: str) -> None:
        if not self._quiet:
            prefix = f"  {run.name:<{self._width}}  " if self._several else "  "
            for line in text.splitlines():
                self._console.print(f"{prefix}{printable(line)}".rstrip(), style=style, markup=False)
            self._draw()

    def _draw(self) -> None:
        doing = [(self._names.get(run, ""), what) for run, what in self._doing.items()]
        self._line.tell(", ".join(f"{name}: {what}" if self._several else what for name, what in doing))
