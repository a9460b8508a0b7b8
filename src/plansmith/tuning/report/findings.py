"""The findings of a search in sentences: the verdict, cautions, and the nearest where nothing meets the constraints."""

from __future__ import annotations

from collections.abc import Iterator

from plansmith.errors import GateError, ServedCheckError
from plansmith.loadtest.report.findings import format_list
from plansmith.records.validation import Interval
from plansmith.tuning.confirmation import Confirmation, has_answer, median_violations
from plansmith.tuning.objective import Goal
from plansmith.tuning.result import Outcome, TuningResult

_FEW_REQUESTS, _FEW_FOR_P99 = 20, 100
"""Of fewer answers, the slowest twentieth, or percent, is not even one."""
_MEASURES = {"throughput": "the throughput", "latency": "as short a p95 latency", "cost": "as cheap"}


def format_gain(goal: Goal, gain: Interval) -> str:
    """A gain with its interval: "1.62 times the throughput (95 %: 1.55 to 1.69)"."""
    return f"{gain.value:.2f} times {_MEASURES[goal.objective]} (95 %: {gain.low:.2f} to {gain.high:.2f})"


def verdict(result: TuningResult) -> str:
    """The result in one sentence."""
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
    """What the rounds beside the current configuration showed."""
    total = len(confirmation.rounds)
    rounds = f"{total} round{'' if total == 1 else 's'} beside the current configuration"
    if not confirmation.meets_constraints:
        return f"it did not meet the constraints in {rounds}"
    compared = sum(has_answer(goal, one.current) and has_answer(goal, one.candidate) for one in confirmation.rounds)
    if confirmation.gain is None:
        problem = next((one.current.problem for one in confirmation.rounds if one.current.problem), "")
        text = f"in {rounds} the current one answered in {compared or 'none'}{f' ({problem})' if problem else ''}"
    else:
        share = "" if compared == total else f"{compared} of "
        text = f"{format_gain(goal, confirmation.gain)} in {share}{rounds}"
    if not confirmation.current_meets_constraints:
        return f"{text}, which did not meet the constraints" if compared else text
    return text if confirmation.is_better else f"{text}: no significant gain"


def best_name(result: TuningResult) -> str:
    """What the best configuration is called."""
    if not result.is_met:
        return "nearest"
    return "best" if result.is_better or result.confirmation is None else "best of the others"


def mark(result: TuningResult, outcome: Outcome) -> str:
    """What a configuration is to the verdict, such as "current, violates a constraint"; empty for most."""
    marks = [best_name(result)] if outcome.configuration == result.best.configuration else []
    marks += ["current"] if outcome.configuration == result.current else []
    return ", ".join(filter(None, [*marks, outcome.reason]))


def cautions(result: TuningResult) -> list[str]:
    """What a reader has to know to rely on the verdict."""
    compared = {result.best.configuration, result.current}
    notes = [note for one in result.outcomes if one.configuration in compared for note in one.measurement.notes]
    return [*_few_requests(result), *filter(None, [result.plan.obstacle]), *dict.fromkeys(notes)]


def require_acceptable(result: TuningResult) -> None:
    """Check that something could be served and meets the constraints.

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
    answered = {one.configuration: one.answered for one in result.outcomes if 0 < one.answered < few}
    named = [f"{name} ({answered[one]})" for one, name in names.items() if one in answered]
    if named:
        yield (
            f"fewer than {few} requests were answered in a trial of {format_list(named)}, which says little; give"
            " longer trials (--seconds)"
        )
