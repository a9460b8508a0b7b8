"""Search report as one self-contained HTML page, without network access or scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from plansmith import __version__
from plansmith.errors import GateError, ServedCheckError
from plansmith.formatting import format_bytes, minute
from plansmith.loadtest.report.findings import format_list, format_number
from plansmith.records.model import EngineKind
from plansmith.records.validation import Interval
from plansmith.report.plots import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, Axis, LinePlot, Series, axis_from_zero, line_plot
from plansmith.report.templating import template_environment
from plansmith.report.verdict import Tile
from plansmith.system.files import make_folder, storage_errors, write_file
from plansmith.tuning.builds import format_changes
from plansmith.tuning.objective import Goal
from plansmith.tuning.result import Outcome, TuningResult
from plansmith.tuning.search import Confirmation, Round, has_answer, median_violations
from plansmith.tuning.trials.history import FOLDER_OPTION, Trial

_FEW_REQUESTS, _FEW_FOR_P99 = 20, 100
"""Of fewer answers, the slowest twentieth, or percent, is not even one."""
_FINDING_MEASURES = {"throughput": "the throughput", "latency": "as short a p95 latency", "cost": "as cheap"}

_PACKAGE = "plansmith.tuning.report"
_TEMPLATE = "tuning.html"
PAGE_FILE = "result.html"
HEADS = ("inferences/s", "p50 ms", "p95 ms", "p99 ms", "batch", "memory", "seconds")
_MEASURES = {"throughput": "inferences", "latency": "p95 latency", "cost": "per million inferences"}
_UNITS = {"throughput": "Inferences per second", "latency": "p95 latency in ms", "cost": "US dollars per million"}


def format_gain(goal: Goal, gain: Interval) -> str:
    """Format a gain with its confidence interval: "1.62 times the throughput (95 %: 1.55 to 1.69)"."""
    return f"{gain.value:.2f} times {_FINDING_MEASURES[goal.objective]} (95 %: {gain.low:.2f} to {gain.high:.2f})"


def verdict(result: TuningResult) -> str:
    """Return the result in one sentence."""
    plan, confirmation = result.plan, result.confirmation
    if confirmation is None and len(result.search.ranking) == 1 < plan.space.size:
        return f"only the current configuration was tried: {result.current.label}; give more with --budget"
    if confirmation is None:
        return f"the current configuration is the best that was found: {result.current.label}"
    rounds = describe_confirmation(plan.goal, confirmation)
    if result.is_better:
        return f"{result.best.configuration.label}: {rounds}"
    others = f"the best of the others, {result.best.configuration.label}"
    return f"no configuration is significantly better than the current one; {others}: {rounds}"


def describe_confirmation(goal: Goal, confirmation: Confirmation) -> str:
    """Describe the result of the confirmation rounds against the current configuration."""
    total = len(confirmation.rounds)
    rounds = f"{total} round{'' if total == 1 else 's'} beside the current configuration"
    if not confirmation.meets_constraints:
        return f"it did not meet the constraints in {rounds}"
    compared = sum(has_answer(goal, pair.current) and has_answer(goal, pair.candidate) for pair in confirmation.rounds)
    if confirmation.gain is None:
        problem = next((pair.current.problem for pair in confirmation.rounds if pair.current.problem), "")
        text = f"in {rounds} the current one answered in {compared or 'none'}{f' ({problem})' if problem else ''}"
    else:
        share = "" if compared == total else f"{compared} of "
        text = f"{format_gain(goal, confirmation.gain)} in {share}{rounds}"
    if not confirmation.current_meets_constraints:
        return f"{text}, which did not meet the constraints" if compared else text
    return text if confirmation.is_better else f"{text}: no significant gain"


def best_name(result: TuningResult) -> str:
    """Return the label of the best configuration."""
    if not result.is_met:
        return "nearest"
    return "best" if result.is_better or result.confirmation is None else "best of the others"


def mark(result: TuningResult, outcome: Outcome) -> str:
    """Return a configuration's status, such as "current, violates a constraint"; empty for most."""
    marks = [best_name(result)] if outcome.configuration == result.best.configuration else []
    marks += ["current"] if outcome.configuration == result.current else []
    return ", ".join(filter(None, [*marks, outcome.reason]))


def cautions(result: TuningResult) -> list[str]:
    """Return the warnings that qualify the verdict."""
    compared = {result.best.configuration, result.current}
    notes = [
        note for outcome in result.outcomes if outcome.configuration in compared for note in outcome.measurement.notes
    ]
    return [*_few_requests(result), *filter(None, [result.plan.obstacle]), *dict.fromkeys(notes)]


def require_acceptable(result: TuningResult) -> None:
    """Require that some configuration could be served and meets the constraints.

    Raises:
        ServedCheckError: nothing could be served.
        GateError: nothing meets the constraints; with the nearest configuration, and what it reached.
    """
    best, goal, model = result.best, result.plan.goal, result.plan.model
    tried = len(result.search.ranking)
    if result.confirmation is None and best.measurement is None:
        raise ServedCheckError(
            f"none of {tried} configurations could be served; {best.configuration.label}: {best.problem}",
            remedy="correct that, and run it again with --retry-failed",
            model=model,
            step="tune",
        )
    if result.is_met:
        return
    trials = result.trials_of(best.configuration)
    measurements = sorted(goal.scored([trial.measurement for trial in trials]), key=goal.violation)
    reached = [
        f"{constraint.format_value(measurements[len(measurements) // 2])} where {constraint.text} is required"
        for constraint, violation in zip(goal.constraints, median_violations(goal, trials), strict=True)
        if measurements and violation > 0
    ]
    raise GateError(
        f"none of {tried} configurations meets the constraints; the nearest, {best.configuration.label}, reached"
        f" {', '.join(reached) or 'no answer'}",
        remedy="loosen the constraint, lower the load (--users, --rate), or try more with --budget, --engines and"
        " --precisions",
        model=model,
        step="tune",
    )


def _few_requests(result: TuningResult) -> Iterator[str]:
    has_p99 = any(constraint.quantity == "p99" for constraint in result.plan.goal.constraints)
    few = _FEW_FOR_P99 if has_p99 else _FEW_REQUESTS
    names = {result.best.configuration: f"the {best_name(result)}", result.current: "the current configuration"}
    answered = {item.configuration: item.answered for item in result.outcomes if 0 < item.answered < few}
    named = [f"{name} ({answered[item]})" for item, name in names.items() if item in answered]
    if named:
        yield (
            f"fewer than {few} requests were answered in a trial of {format_list(named)}, which says little; give"
            " longer trials (--seconds)"
        )


def store_page(result: TuningResult, folder: Path) -> Path:
    """Write the HTML page of a result next to it.

    Raises:
        RepositoryError: the disk is full or cannot be written.
    """
    with storage_errors(folder, alternative=FOLDER_OPTION):
        make_folder(folder)
        write_file(folder / PAGE_FILE, render_page(result), replace=True)
    return folder / PAGE_FILE


def render_page(result: TuningResult) -> str:
    """Render the complete page."""
    plan = result.plan
    outcomes = result.outcomes
    answered = [outcome for outcome in outcomes if outcome.measurement.is_answered]
    template = template_environment(_PACKAGE).get_template(_TEMPLATE)
    return template.render(
        plansmith=__version__,
        result=result,
        plan=plan,
        ended=minute(result.ended_at),
        verdict=_sentence(verdict(result)) if result.is_met else "No configuration meets the constraints.",
        is_good=result.is_met,
        cautions=[_sentence(caution) for caution in cautions(result)],
        tiles=list(_tiles(result)),
        tradeoff=tradeoff_plot(result, answered) if answered else None,
        progress=progress_plot(result),
        frame=(WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM),
        confirmations=[
            (
                confirmation.candidate.label,
                _sentence(describe_confirmation(plan.goal, confirmation)),
                rounds_plot(plan.goal, confirmation),
                list(_round_rows(plan.goal, confirmation.rounds)),
            )
            for confirmation in result.search.confirmations
        ],
        heads=HEADS,
        rows=[
            (outcome.configuration.label, mark(result, outcome), _cells(outcome), outcome.configuration == best)
            for best in [result.best.configuration]
            for outcome in outcomes
        ],
        changes=format_changes(result.changes),
        facts=list(_facts(result)),
    )


def tradeoff_plot(result: TuningResult, outcomes: Sequence[Outcome]) -> LinePlot:
    """Return the plot of throughput against p95 latency, with the Pareto front."""
    points = [(entry.measurement.p95_ms, entry.measurement.throughput) for entry in outcomes]
    groups: dict[str, list[tuple[float, float]]] = {}
    for outcome, point in zip(outcomes, points, strict=True):
        groups.setdefault(_group(result, outcome), []).append(point)
    names = (best_name(result), "current", "meets the constraints", "violates a constraint")
    front = pareto_front(points)
    series = [Series("Pareto front", front)] if len(front) > 1 else []
    series += [Series(name, _separate(groups[name])) for name in names if name in groups]
    across = axis_from_zero([x for x, _ in points], lambda value: f"{format_number(value)} ms")
    up = axis_from_zero([y for _, y in points], format_number)
    return line_plot("Inferences per second over p95 latency", series, across, up, format_number, over="p95 latency")


def progress_plot(result: TuningResult) -> LinePlot:
    """Return the plot of the objective and the best so far, by trial of screening and halving."""
    goal = result.plan.goal
    trials = [trial for trial in result.search.trials if not trial.round_number]
    values = [_value(goal, trial) for trial in trials]
    best: list[tuple[float, float | None]] = []
    leader: Trial | None = None
    for number, trial in enumerate(trials, 1):
        if trial.measurement is not None and goal.is_met(trial.measurement):
            best_measurement = leader.measurement if leader is not None else None
            leader = (
                trial
                if best_measurement is None or goal.rank(trial.measurement) < goal.rank(best_measurement)
                else leader
            )
        best.append((number, _value(goal, leader) if leader is not None else None))
    places = _separate([(number, value) for number, value in enumerate(values, 1) if value is not None])
    series = [Series("best so far", best), Series("trial", places)]
    across = _count_axis(len(trials), "run")
    up = axis_from_zero([value for value in values if value is not None], format_number)
    return line_plot(f"{_UNITS[goal.objective]} by run", series, across, up, format_number, over="runs")


def rounds_plot(goal: Goal, confirmation: Confirmation) -> LinePlot:
    """Return the plot of the objective of both configurations by round."""
    pairs = confirmation.rounds
    series = [
        Series("candidate", [(number, _value(goal, pair.candidate)) for number, pair in enumerate(pairs, 1)]),
        Series("current", [(number, _value(goal, pair.current)) for number, pair in enumerate(pairs, 1)]),
    ]
    values = [value for curve in series for _, value in curve.points if value is not None]
    up = axis_from_zero(values, format_number)
    across = _count_axis(len(pairs), "round")
    return line_plot(f"{_UNITS[goal.objective]} by round", series, across, up, format_number, over="rounds")


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the Pareto front: points with no other of lower latency and at least equal throughput, by latency."""
    front: list[tuple[float, float]] = []
    for latency, rate in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or rate > front[-1][1]:
            front.append((latency, rate))
    return front


def _separate(points: Sequence[tuple[float, float]]) -> list[tuple[float, float | None]]:
    """Separate points, so that no line connects them."""
    separated: list[tuple[float, float | None]] = []
    for x, y in points:
        separated += [(x, y), (x, None)]
    return separated


def _count_axis(count: int, noun: str) -> Axis:
    step = max(1, -(-count // 8))
    marks = [(float(number), str(number)) for number in range(1, count + 1, step)]
    marks[0] = (marks[0][0], f"{noun} {marks[0][1]}")
    return Axis(0.5, count + 0.5, tuple(marks))


def _group(result: TuningResult, outcome: Outcome) -> str:
    if outcome.configuration == result.best.configuration:
        return best_name(result)
    if outcome.configuration == result.current:
        return "current"
    return "meets the constraints" if outcome.is_met else "violates a constraint"


def _value(goal: Goal, trial: Trial) -> float | None:
    measurement = trial.measurement
    return goal.value(measurement) if measurement is not None and goal.has_score(measurement) else None


def _tiles(result: TuningResult) -> Iterator[Tile]:
    goal = result.plan.goal
    outcomes = {outcome.configuration: outcome for outcome in result.outcomes}
    best, current = outcomes.get(result.best.configuration), outcomes.get(result.current)
    if best is not None and best is not current:
        name = best_name(result)
        yield Tile(
            f"{name[0].upper()}{name[1:]}, {_MEASURES[goal.objective]}",
            _tile_value(goal, best),
            best.configuration.label,
        )
    if current is not None:
        yield Tile(f"Current, {_MEASURES[goal.objective]}", _tile_value(goal, current), current.configuration.label)
    if result.confirmation is not None and result.confirmation.gain is not None:
        gain = result.confirmation.gain
        yield Tile("Gain", f"{gain.value:.2f} times", f"95 %: {gain.low:.2f} to {gain.high:.2f}")
    tried = f"{len(result.search.ranking)} of {result.plan.space.size}"
    yield Tile("Tried", tried, f"configurations, in {len(result.search.trials)} runs")


def _tile_value(goal: Goal, outcome: Outcome) -> str:
    """The objective's value, short enough for a tile."""
    if not goal.has_score(outcome.measurement):
        return "no answer"
    value = format_number(goal.value(outcome.measurement))
    return {"throughput": f"{value}/s", "latency": f"{value} ms", "cost": f"${value}"}[goal.objective]


def _cells(outcome: Outcome) -> tuple[str, ...]:
    measurement = outcome.measurement
    latencies = (measurement.p50_ms, measurement.p95_ms, measurement.p99_ms)
    return (
        format_number(measurement.throughput),
        *(format_number(value) if measurement.answered else "" for value in latencies),
        "" if measurement.batch_size is None else f"{measurement.batch_size:.1f}",
        "" if measurement.memory_bytes is None else format_bytes(measurement.memory_bytes),
        outcome.length,
    )


def _round_rows(goal: Goal, rounds: Sequence[Round]) -> Iterator[tuple[str, ...]]:
    for number, pair in enumerate(rounds, 1):
        current, candidate = pair.current.measurement, pair.candidate.measurement
        cells = [
            goal.format_value(trial.measurement) if trial.measurement else trial.problem
            for trial in (pair.current, pair.candidate)
        ]
        gain = ""
        if current is not None and candidate is not None and goal.has_score(current) and goal.has_score(candidate):
            gain = f"{goal.gain(candidate, current):.2f}"
        yield str(number), *cells, gain


def _facts(result: TuningResult) -> Iterator[tuple[str, str]]:
    """Yield the facts of the search: what was searched, how and where."""
    plan = result.plan
    yield "Objective", plan.goal.label
    yield "Constraints", ", ".join(constraint.text for constraint in plan.goal.constraints)
    yield "Load", plan.load
    yield "Machine", plan.host
    yield "Runs", f"{result.search.runs}; seed {plan.seed}"
    for label, reason in plan.left_out.items():
        yield f"Left out: {label}", reason
    for trial in result.failed:
        yield "Failed", f"{trial.configuration.label}: {trial.problem}"


def _sentence(text: str) -> str:
    """A sentence that starts with a capital, unless it starts with the name of an engine."""
    return f"{text if text.startswith(tuple(EngineKind)) else text[0].upper() + text[1:]}."
