"""Progress of a comparison on standard error: a line for each measured cell, and a moving line for the current one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from plansmith.cli.compare.table import format_run
from plansmith.cli.tune.progress import CompileSteps, WithActivity
from plansmith.formatting import format_seconds
from plansmith.tuning.comparison.compare import CompareObserver

if TYPE_CHECKING:
    from plansmith.loadtest.runner.load_runner import Progress
    from plansmith.tuning.comparison.cells import Cell, CellRun
    from plansmith.tuning.comparison.compare import ComparisonRequest
    from plansmith.tuning.configuration import Build


class CompareProgress(WithActivity, CompareObserver):
    """Shows the progress of a comparison; a context manager.

    Args:
        request: the comparison.
        quiet: show nothing.
    """

    def __init__(self, request: ComparisonRequest, *, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self.listener = CompileSteps(self)
        self._total = len(request.cells) * request.rounds
        self._number = 0
        self._rounds = request.rounds
        self._counts: dict[Cell, int] = {}
        self._load_seconds = request.load_seconds

    def compiling(self, model: str, build: Build | None) -> None:
        """A build is compiled."""
        self.label = f"{model}: compiling {build.label if build is not None else 'as its spec has it'}"
        self.activity("")

    def measuring(self, cell: Cell, round_number: int) -> None:
        """A cell is measured."""
        if not self._number:
            self.print(f"  {self._total} load tests, {format_seconds(self._load_seconds)} of load at most")
        self.label = f"{self._number + 1} of {self._total}: {cell.model}, {cell.label}, round {round_number}"
        self.activity("")

    def measured(self, cell: Cell, run: CellRun | None, problem: str, *, reused: bool) -> None:
        """Print a line for a measured cell, or one that could not be."""
        self._number += 1
        if problem:  # no further round of it
            self._total -= self._rounds - self._counts.get(cell, 0) - 1
        self._counts[cell] = self._counts.get(cell, 0) + 1
        state, style = ("failed", "red") if problem else ("done", "green")
        line = Text.assemble((f"  {self._number:>3}/{self._total} {state:<6} ", style), f"{cell.model}, {cell.label}")
        if problem or run is not None:
            line.append(f"; {problem or (format_run(run) if run else '')}", "dim")
        if reused:
            line.append(", measured before", "dim")
        self.print(line)

    def load(self, progress: Progress) -> None:
        """Progress of the load."""
        self.activity(f"{progress.throughput:.0f} answers/s, p95 {progress.p95_ms:.0f} ms")
