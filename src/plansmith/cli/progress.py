"""How a compile goes, on standard error: a moving line in a terminal, a line a step elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from plansmith.stages import Listener
from plansmith.types import StepRecord


class TerminalProgress(Listener):
    """Shows what is being done; a context manager.

    Args:
        quiet: show notices only.

    Attributes:
        steps: those that are finished.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._quiet = quiet
        self._status: Status | None = None
        self.steps: list[StepRecord] = []

    def __enter__(self) -> Self:
        if not self._quiet and self._console.is_terminal:
            self._status = self._console.status("")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def progress(self, step: str, text: str) -> None:
        """Update the moving line."""
        if self._status is not None:
            self._status.update(escape(f"{step}: {text}" if text else step))

    def waiting(self, step: str, text: str) -> None:
        """Say in the moving line, or once in a line of its own, what has to end first."""
        if self._status is not None:
            self.progress(step, text)
        elif not self._quiet:
            self._console.print(f"  {step:<13}{text}", markup=False, soft_wrap=True)

    def finished(self, record: StepRecord) -> None:
        """Leave one line for a finished step."""
        self.steps.append(record)
        if not self._quiet:
            how = "[dim]cached[/dim]" if record.cached else f"{record.seconds:.1f} s"
            self._console.print(f"  {record.name:<13}{how}")

    def notice(self, text: str) -> None:
        """Say what was mended."""
        self._console.print(f"plansmith: {text}", style="yellow", markup=False, soft_wrap=True)
