"""Progress of a search on standard error: a line for each finished trial, and a moving line for the current one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from plansmith.cli.compile.progress import WithMovingLine
from plansmith.cli.tune.table import format_measurement
from plansmith.formatting import format_seconds
from plansmith.steps.runner import Listener
from plansmith.tuning.tune import TuningObserver

if TYPE_CHECKING:
    from plansmith.loadtest.runner.load_runner import Progress
    from plansmith.tuning.configuration import Build
    from plansmith.tuning.objective import Goal
    from plansmith.tuning.result import TuningPlan
    from plansmith.tuning.trials.history import Phase
    from plansmith.tuning.trials.runner import TrialProgress

_PHASES: dict[Phase, str] = {
    "screening": "screening: short runs of many configurations",
    "halving": "halving: longer runs of the best",
    "confirmation": "confirmation: the best and the current configuration in turn",
}


class WithActivity(WithMovingLine):
    """A moving line with a label and what is being done for it, below lines that stay.

    Args:
        quiet: show nothing.

    Attributes:
        label: of the moving line.
    """

    label = ""

    def activity(self, text: str) -> None:
        """What is being done."""
        self._line.tell(f"{self.label}: {text}" if text else self.label)

    def print(self, line: str | Text) -> None:
        """Leave a line."""
        if not self._quiet:
            self._console.print(line, markup=False)


class TuneProgress(WithActivity, TuningObserver):
    """Shows the progress of a search; a context manager.

    Args:
        goal: of the search.
        quiet: show nothing.
    """

    def __init__(self, goal: Goal, *, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self.listener = CompileSteps(self)
        self._goal = goal
        self._phase: Phase | None = None

    def compiling(self, build: Build | None) -> None:
        """A build is compiled."""
        self.label = f"compiling {build.label if build is not None else 'the model as its spec has it'}"
        if self._line.shown:
            self._line.tell(self.label)
        else:
            self.print(f"  {self.label}")

    def begin(self, plan: TuningPlan) -> None:
        """Print what is searched, and what is left out."""
        for label, reason in plan.left_out.items():
            self.print(Text.assemble(("  left out  ", "yellow"), f"{label}: {reason}"))
        if plan.obstacle:
            self.print(Text(f"  {plan.obstacle}", style="yellow"))
        duration = format_seconds(plan.schedule.duration_seconds)
        self.print(f"  {plan.space.size} configurations, {plan.schedule.runs} runs, about {duration}; {plan.load}")

    def trial(self, progress: TrialProgress) -> None:
        """Print a line for a finished trial."""
        if progress.phase != self._phase:
            self._phase = progress.phase
            self.print(f"  {_PHASES[progress.phase]}")
        total = max(progress.total, progress.number)
        self.label = f"{progress.number} of {total}: {progress.configuration.label}"
        if progress.trial is None:
            self._line.tell(self.label)
            return
        measurement = progress.trial.measurement
        state, style = ("failed", "red") if measurement is None else ("over", "yellow")
        if measurement is not None and self._goal.is_met(measurement):
            state, style = "done", "green"
        line = Text.assemble((f"  {progress.number:>3}/{total} {state:<6} ", style), progress.configuration.label)
        line.append(f"; {format_measurement(measurement) if measurement else progress.trial.problem}", "dim")
        if progress.reused:
            line.append(", from an earlier search", "dim")
        self.print(line)

    def load(self, progress: Progress) -> None:
        """Progress of the load."""
        self.activity(f"{progress.throughput:.0f} answers/s, p95 {progress.p95_ms:.0f} ms")


class CompileSteps(Listener):
    """Steps of a compile go into the moving line."""

    def __init__(self, progress: WithActivity) -> None:
        self._progress = progress

    def progress(self, step: str, text: str) -> None:
        """A step goes on."""
        self._progress.activity(f"{step}{f': {text}' if text else ''}")

    def waiting(self, step: str, text: str) -> None:
        """Something else has to end first."""
        self._progress.activity(f"{step}: {text}")

    def notice(self, text: str) -> None:
        """Something was corrected."""
        self._progress.print(Text(f"  {text}", style="yellow"))
