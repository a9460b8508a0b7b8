"""Progress display of a compile on standard error: a moving line in a terminal, otherwise a line per step."""

from __future__ import annotations

import sys
import time
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Self

from plansmith.cli.output import can_redraw, columns, open_console
from plansmith.formatting import format_seconds
from plansmith.records.release import StepRecord
from plansmith.steps.runner import Listener

if TYPE_CHECKING:
    from rich.console import Console
    from rich.spinner import Spinner
    from rich.text import Text

_SPINNER_CELLS = 2
_BAR_CELLS = 20
_PER_SECOND = 12.5
_LONG_SECONDS = 3.0


class MovingLine:
    """Moving line of a terminal's standard error: redrawn in place and removed at the end; a context manager.

    Args:
        quiet: draw nothing.

    Attributes:
        shown: whether there is such a line; not where standard error is no terminal that can do it.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.shown = not quiet and can_redraw()
        if self.shown:
            from rich.live import Live
            from rich.spinner import Spinner
            from rich.text import Text

            is_ascii = self.console.options.ascii_only
            self._spinner = Spinner("line" if is_ascii else "dots", style="status.spinner")
            self._live = Live(self, console=self.console, refresh_per_second=_PER_SECOND, transient=True)
            self._line, self._since = Text(), time.monotonic()

    @cached_property
    def console(self) -> Console:
        """Standard error, for lines above this one."""
        return open_console(stderr=True)

    def __rich__(self) -> Spinner:
        """Draw the line, with the time that its text has stood there once that is long."""
        from rich.text import Text

        seconds = time.monotonic() - self._since
        whole = f"{seconds:.0f} s" if seconds < 60 else format_seconds(seconds)
        elapsed = f"  {whole}" if seconds >= _LONG_SECONDS else ""
        line = self._line.copy()
        line.truncate(max(self.console.width - _SPINNER_CELLS - len(elapsed), 1), overflow="ellipsis")
        self._spinner.update(text=Text.assemble(line, (elapsed, "dim")))
        return self._spinner

    def __enter__(self) -> Self:
        if self.shown:
            # Drawn at once: of a line that its thread draws first, a line that is printed meanwhile would not know.
            self._live.start(refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.shown:
            self._live.stop()

    def tell(self, text: str, share: float | None = None) -> None:
        """Change the line's text, which is cut to the terminal width so that it can be erased.

        Args:
            text: what is done.
            share: which part of it, from 0 to 1, is done; drawn as a bar.
        """
        if self.shown:
            from rich.text import Text

            line = Text(" ".join(text.split()))
            if share is not None:
                line = Text.assemble(self._bar(share), " ", line)
            self.console.width = columns(sys.stderr)
            self._line, self._since = line, time.monotonic()

    def _bar(self, share: float) -> Text:
        from rich.text import Text

        full, left = "#-" if self.console.options.ascii_only else "━─"
        cells = round(share * _BAR_CELLS)
        return Text.assemble((full * cells, "green"), (left * (_BAR_CELLS - cells), "dim"))


class WithMovingLine:
    """Moving line below permanent lines; a context manager.

    Args:
        quiet: neither is shown.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._line = MovingLine(quiet=quiet)

    @property
    def _console(self) -> Console:
        return self._line.console

    def __enter__(self) -> Self:
        self._line.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.__exit__(kind, value, trace)


class TerminalProgress(WithMovingLine, Listener):
    """Progress display of a compile; a context manager.

    Args:
        quiet: show notices only.

    Attributes:
        steps: those that are finished.
    """

    def __init__(self, *, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self.steps: list[StepRecord] = []

    def progress(self, step: str, text: str) -> None:
        """Update the moving line."""
        self._line.tell(f"{step}: {text}" if text else step)

    def moving(self, step: str, text: str, share: float) -> None:
        """Draw a bar before the moving line."""
        self._line.tell(f"{step}: {text}", share)

    def waiting(self, step: str, text: str) -> None:
        """Report what must end first, in the moving line or once in its own line."""
        if self._line.shown:
            self.progress(step, text)
        elif not self._quiet:
            self._console.print(f"  {step:<13}{text}", markup=False)

    def finished(self, record: StepRecord) -> None:
        """Print a permanent line for a finished step."""
        self.steps.append(record)
        if not self._quiet:
            from rich.text import Text

            how = ("cached", "dim") if record.cached else f"{record.seconds:.1f} s"
            self._console.print(Text.assemble(f"  {record.name:<12} ", how))

    def notice(self, text: str) -> None:
        """Report a correction."""
        self._console.print(f"plansmith: {text}", style="yellow", markup=False)
