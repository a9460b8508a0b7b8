"""A search and its result in the terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.cli.text import count, short, table, without_empty_columns
from plansmith.formatting import format_bytes, format_seconds

if TYPE_CHECKING:
    from plansmith.tuning.result import Outcome, TuningResult
    from plansmith.tuning.trials.history import Trial
    from plansmith.tuning.trials.measurement import Measurement
    from plansmith.tuning.tune import PreparedSearch

_MAX_ROWS = 8


def format_measurement(measurement: Measurement) -> str:
    """A measurement in a few words."""
    if not measurement.is_answered:
        return "no answer"
    text = f"{measurement.throughput:.1f}/s, p50 {measurement.p50_ms:.3g} ms, p95 {measurement.p95_ms:.3g} ms"
    if measurement.batch_size is not None:
        text += f", batches of {measurement.batch_size:.1f}"
    if measurement.failed:
        text += f", {measurement.error_rate:.1%} failed"
    return text


def plan_document(prepared: PreparedSearch) -> dict[str, Any]:
    """What a search would do, as JSON-ready fields."""
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
    """The same in the terminal."""
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
    """A result as JSON-ready fields; `page` is where its page is."""
    from plansmith.tuning.report.findings import cautions, verdict

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
    """The same in the terminal."""
    from plansmith.tuning.apply import format_changes
    from plansmith.tuning.report.findings import cautions, verdict

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
        rounds = [f"{_value(result, one.candidate)} : {_value(result, one.current)}" for one in confirmation.rounds]
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
    """The first outcomes, the best and the current one."""
    from plansmith.tuning.report.findings import mark

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
    """Instances, and their threads where they are chosen."""
    if not any(threads for _, threads in choices):
        return ", ".join(str(instances) for instances, _ in choices)
    listed = ", ".join(f"{instances}x{threads}" for instances, threads in choices if threads)
    default = [str(instances) for instances, threads in choices if not threads]
    suffix = f", and {', '.join(default)} with the backend's default threads" if default else ""
    return f"{listed} (instances x threads){suffix}"
