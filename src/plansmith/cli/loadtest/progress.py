"""Progress of a load test on standard error: a moving line in a terminal, and a line per stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plansmith.cli.compile.progress import WithMovingLine
from plansmith.formatting import format_seconds

if TYPE_CHECKING:
    from plansmith.loadtest.runner.load_runner import Progress

_LINE_SECONDS = 30.0


class LoadProgress(WithMovingLine):
    """Shows the progress of a load test; a context manager.

    Args:
        stages: how many there are.
        quiet: show nothing.
    """

    def __init__(self, stages: int, *, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self._stages = stages
        self._stage: int | None = None
        self._printed_at = 0.0

    def show(self, progress: Progress) -> None:
        """Show progress, about once a second."""
        is_new = progress.stage != self._stage
        self._stage = progress.stage
        where = "warm-up" if progress.stage < 0 else f"stage {progress.stage + 1} of {self._stages}"
        if is_new and not self._quiet:
            duration = format_seconds(progress.planned_seconds)
            self._console.print(f"{where}: {progress.label}, {duration}", markup=False)
            self._printed_at = 0.0
        text = f"{where}, {format_seconds(progress.seconds)}: {self._figures(progress)}"
        if self._line.shown:
            share = min(progress.seconds / progress.planned_seconds, 1.0) if progress.planned_seconds else 1.0
            self._line.tell(text, share)
        elif not self._quiet and progress.seconds - self._printed_at >= _LINE_SECONDS:
            self._printed_at = progress.seconds
            self._console.print(text, markup=False)

    def _figures(self, progress: Progress) -> str:
        parts = [f"{progress.throughput:.4g} requests/s"]
        if progress.users:
            parts.insert(0, f"{progress.users} user{'' if progress.users == 1 else 's'}")
        if progress.requests:
            parts.append(f"p50 {progress.p50_ms:.4g} ms, p95 {progress.p95_ms:.4g} ms")
        if progress.failures:
            parts.append(f"{progress.failures} failed")
        return ", ".join(parts)
