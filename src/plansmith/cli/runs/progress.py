"""Progress display of flow runs on standard error: lines of their logs, and a moving line with their current step."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from plansmith.cli.compile.progress import WithMovingLine
from plansmith.cli.output import printable
from plansmith.flows.runs.following import Watcher

if TYPE_CHECKING:
    from uuid import UUID

    from plansmith.flows.runs.submitting import RunEnded, SubmittedRun

_STYLES = ((logging.ERROR, "red"), (logging.WARNING, "yellow"))


class RunProgress(WithMovingLine, Watcher):
    """Progress display of flow runs; a context manager.

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

    def state(self, run: SubmittedRun, description: str) -> None:
        """Print a permanent line for a state change; a run has only a few."""
        self._doing[run.id] = description
        self._print(run, description, "cyan")

    def step(self, run: SubmittedRun, names: Sequence[str]) -> None:
        """Show the running steps in the moving line."""
        self._doing[run.id] = ", ".join(names) or "running"
        self._draw()

    def line(self, run: SubmittedRun, level: int, text: str) -> None:
        """Print a log line unchanged."""
        self._print(run, text, next((style for least, style in _STYLES if level >= least), ""))

    def ended(self, ended: RunEnded) -> None:
        """Clear the current step of a run."""
        self.endings.append(ended)
        self._doing.pop(ended.run.id, None)
        if self._several:
            self._print(ended.run, ended.summary, "")
        self._draw()

    def notice(self, text: str) -> None:
        """Report an unusual event, on any kind of output stream."""
        self._console.print(f"plansmith: {text}", style="yellow", markup=False)

    def _print(self, run: SubmittedRun, text: str, style: str) -> None:
        if not self._quiet:
            prefix = f"  {run.name:<{self._width}}  " if self._several else "  "
            for line in text.splitlines():
                self._console.print(f"{prefix}{printable(line)}".rstrip(), style=style, markup=False)
            self._draw()

    def _draw(self) -> None:
        doing = [(self._names.get(run, ""), activity) for run, activity in self._doing.items()]
        self._line.tell(", ".join(f"{name}: {activity}" if self._several else activity for name, activity in doing))
