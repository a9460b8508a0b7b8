"""Progress display of a search on standard error: a line per finished trial, and a moving line for the current one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from plansmith.cli.compile.progress import WithMovingLine
from plansmith.cli.output import short, table, without_empty_columns
from plansmith.formatting import count, format_bytes, format_seconds
from plansmith.steps.runner import Listener
from plansmith.tuning.tune import TuningObserver

if TYPE_CHECKING:
    from plansmith.loadtest.runner.load_runner import Progress
    from plansmith.tuning.configuration import Build
    from plansmith.tuning.objective import Goal
    from plansmith.tuning.result import Outcome, TuningPlan, TuningResult
    from plansmith.tuning.trials.history import Measurement, Phase, Trial
    from plansmith.tuning.trials.runner import TrialProgress
    from plansmith.tuning.tune import PreparedSearch


_MAX_ROWS = 8

_PHASES: dict[Phase, str] = {
    "screening": "screening: short runs of many configurations",
    "halving": "halving: longer runs of the best",
    "confirmation": "confirmation: the best and the current configuration in turn",
}


def format_measurement(measurement: Measurement) -> str:
    """Format a measurement briefly."""
    if not measurement.is_answered:
        return "no answer"
    text = f"{measurement.throughput:.1f}/s, p50 {measurement.p50_ms:.3g} ms, p95 {measurement.p95_ms:.3g} ms"
    if measurement.batch_size is not None:
        text += f", batches of {measurement.batch_size:.1f}"
    if measurement.failed:
        text += f", {measurement.error_rate:.1%} failed"
    return text


def plan_document(prepared: PreparedSearch) -> dict[str, Any]:
    """Return the plan of a search as JSON-ready fields."""
    plan = prepared.plan
    return {
        "dry_run": True,
        **plan.model_dump(mode="json"),
        "configurations": plan.space.size,
        "runs": plan.schedule.runs,
        "seconds": plan.schedule.duration_seconds,
        "folder": str(prepared.request.model.folder),
    }


def plan_lines(prepared: PreparedSearch) -> Iterator[str]:
    """Return the plan of a search as terminal lines."""
    plan, space, schedule = prepared.plan, prepared.plan.space, prepared.plan.schedule
    yield f"{plan.model}: a search would choose from {count(space.size, 'configuration')}; nothing was served"
    yield f"  objective    {plan.goal.label}"
    yield f"  constraints  {', '.join(constraint.text for constraint in plan.goal.constraints)}"
    yield f"  builds       {', '.join(build.label for build in space.builds)}"
    yield from (f"  left out     {label}: {reason}" for label, reason in plan.left_out.items())
    yield f"  max batch    {', '.join(map(str, space.max_batch_sizes))}"
    yield f"  preferred    {', '.join(space.preferences)}"
    yield f"  delay µs     {', '.join(map(str, space.queue_delays))}"
    yield f"  instances    {_format_instances(space.instances_and_threads)}"
    yield f"  current      {plan.current.label}"
    if plan.obstacle:
        yield f"  !            {plan.obstacle}"
    yield f"  runs         {schedule.runs}: {schedule.description}; about {format_seconds(schedule.duration_seconds)}"
    yield f"  load         {plan.load}"
    yield f"  folder       {short(prepared.request.model.folder)}"


def result_document(result: TuningResult, page: Path) -> dict[str, Any]:
    """Return a result as JSON-ready fields; `page` is the path of its HTML page."""
    from plansmith.tuning.report.page import cautions, verdict

    outcomes = [outcome.model_dump(mode="json") for outcome in result.outcomes]
    best = result.best.configuration.model_dump(mode="json")
    return {
        **result.model_dump(mode="json"),
        "best": next((outcome for outcome in outcomes if outcome["configuration"] == best), None),
        "outcomes": outcomes,
        "better": result.is_better,
        "verdict": verdict(result),
        "cautions": cautions(result),
        "configurations": result.plan.space.size,
        "page": str(page.absolute()),
    }


def result_lines(result: TuningResult, page: Path) -> Iterator[str]:
    """Return the result as terminal lines."""
    from plansmith.tuning.builds import format_changes
    from plansmith.tuning.report.page import cautions, verdict

    plan, search = result.plan, result.search
    yield f"{plan.model}: {verdict(result)}"
    yield from (f"  ! {caution}" for caution in cautions(result))
    reused = len(search.trials) - search.measured
    yield (
        f"  {count(len(search.trials), 'run')} ({reused} from earlier searches) of {len(search.ranking)} of"
        f" {count(plan.space.size, 'configuration')}; {plan.load}; {plan.host}"
    )
    yield from (f"  {line}" for line in _table(result))
    yield from (f"  failed: {trial.configuration.label}: {trial.problem}" for trial in result.failed)
    yield from (f"  left out: {label}: {reason}" for label, reason in plan.left_out.items())
    for confirmation in search.confirmations:
        rounds = [
            f"{_value(result, round_result.candidate)} : {_value(result, round_result.current)}"
            for round_result in confirmation.rounds
        ]
        yield f"  rounds of {confirmation.candidate.label} : current: {', '.join(rounds)}"
    if result.changes:
        yield "  changes of the spec:"
        yield from (f"    {line}" for line in format_changes(result.changes).splitlines())
    if result.applied:
        yield f"  published as {result.applied}"
    elif result.changes:
        yield "  nothing was published; the same command with --apply compiles and publishes it"
    yield f"  page: {short(page.absolute())}"


def _table(result: TuningResult) -> list[str]:
    """Format a table of the first outcomes, the best and the current one."""
    from plansmith.tuning.report.page import mark

    goal = result.plan.goal
    shown = {result.best.configuration, result.current}
    rows = [["inferences/s", "$ per million", "p50 ms", "p95 ms", "batch", "memory", "seconds", "configuration"]]
    for place, outcome in enumerate(result.outcomes):
        if place >= _MAX_ROWS and outcome.configuration not in shown:
            continue
        note = mark(result, outcome)
        cost = f"{goal.value(outcome.measurement):.4g}" if goal.objective == "cost" else ""
        rows.append([*_cells(outcome, cost), outcome.configuration.label + (f" ({note})" if note else "")])
    return table(without_empty_columns(rows))


def _cells(outcome: Outcome, cost: str) -> list[str]:
    measurement = outcome.measurement
    latencies = [f"{value:.3g}" if measurement.answered else "" for value in (measurement.p50_ms, measurement.p95_ms)]
    batch = "" if measurement.batch_size is None else f"{measurement.batch_size:.1f}"
    memory = "" if measurement.memory_bytes is None else format_bytes(measurement.memory_bytes)
    return [f"{measurement.throughput:.1f}", cost, *latencies, batch, memory, outcome.length]


def _value(result: TuningResult, trial: Trial) -> str:
    goal = result.plan.goal
    if trial.measurement is None or not goal.has_score(trial.measurement):
        return "no answer"
    return f"{goal.value(trial.measurement):.4g}"


def _format_instances(choices: Sequence[tuple[int, int]]) -> str:
    """Format instance counts, with their threads if those are tuned."""
    if not any(threads for _, threads in choices):
        return ", ".join(str(instances) for instances, _ in choices)
    listed = ", ".join(f"{instances}x{threads}" for instances, threads in choices if threads)
    default = [str(instances) for instances, threads in choices if not threads]
    suffix = f", and {', '.join(default)} with the backend's default threads" if default else ""
    return f"{listed} (instances x threads){suffix}"


class WithActivity(WithMovingLine):
    """Moving line with a label and its current activity, below permanent lines.

    Args:
        quiet: show nothing.

    Attributes:
        label: of the moving line.
    """

    label = ""

    def activity(self, text: str) -> None:
        """Set the current activity."""
        self._line.tell(f"{self.label}: {text}" if text else self.label)

    def print(self, line: str | Text) -> None:
        """Print a permanent line."""
        if not self._quiet:
            self._console.print(line, markup=False)


class TuneProgress(WithActivity, TuningObserver):
    """Progress display of a search; a context manager.

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
        """Report that a build is being compiled."""
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
        """Report progress of the load."""
        self.activity(f"{progress.throughput:.0f} answers/s, p95 {progress.p95_ms:.0f} ms")


class CompileSteps(Listener):
    """Observer that shows the steps of a compile in the moving line."""

    def __init__(self, progress: WithActivity) -> None:
        self._progress = progress

    def progress(self, step: str, text: str) -> None:
        """Report progress of a step."""
        self._progress.activity(f"{step}{f': {text}' if text else ''}")

    def waiting(self, step: str, text: str) -> None:
        """Report that another task has to end first."""
        self._progress.activity(f"{step}: {text}")

    def notice(self, text: str) -> None:
        """Report a correction."""
        self._progress.print(Text(f"  {text}", style="yellow"))
