"""Constraints, budgets and goals as people write them."""

from __future__ import annotations

import math

import pytest

from plansmith.errors import UsageError
from plansmith.tuning.budget import MIN_RUNS, Budget, default_schedule, parse_budget, schedule_runs, schedule_within
from plansmith.tuning.objective import FEW_ERRORS, Goal, parse_constraint, parse_constraints
from plansmith.tuning.trials.history import Measurement

MEASUREMENT = Measurement(
    seconds=10, requests=200, failed=4, throughput=50, p50_ms=20, p90_ms=40, p95_ms=50, p99_ms=80, memory_bytes=2**30
)


@pytest.mark.parametrize(
    ("text", "quantity", "limit"),
    [
        ("p95<50ms", "p95", 50),
        ("p99 <= 0.2s", "p99", 200),
        ("error_rate<1%", "error_rate", 0.01),
        ("memory < 512MiB", "memory", 512 * 2**20),
        ("throughput>=1e3/s", "throughput", 1000),
    ],
)
def test_constraint_is_read(text: str, quantity: str, limit: float) -> None:
    """A constraint is a quantity, a sign, a number and a unit."""
    constraint = parse_constraint(text)
    assert constraint.quantity == quantity
    assert constraint.limit == pytest.approx(limit)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("p95", "is no constraint"),
        ("p95<50", "give the unit: one of us, µs, ms, s"),
        ("p95<50min", "the unit 'min' is none of us, µs, ms, s"),
        ("p97<50ms", "p97 is none of p50, p90, p95, p99, error_rate, memory, throughput"),
        ("p95>50ms", "p95 is limited from above: write <"),
        ("throughput<5", "a throughput is limited from below: write >"),
        ("p95=50ms", "= asks for one value"),
        ("p95<0ms", "has to be above 0"),
        ("error_rate<5", "a share is at most 1"),
    ],
)
def test_wrong_constraint_is_refused(text: str, problem: str) -> None:
    """Each mistake is named, with examples of what to write."""
    with pytest.raises(UsageError, match=problem) as refused:
        parse_constraint(text)
    assert "write it like" in refused.value.remedy


def test_mistakes_reported_together() -> None:
    """Several wrong constraints are one error, and the error rate is limited unless a limit is given."""
    with pytest.raises(UsageError, match="p99 has two limits") as refused:
        parse_constraints(["p95", "memory<2", "p99<1s", "p99<2s"])
    assert refused.value.message.count("\n") == 3
    assert parse_constraints(["p95<1s"])[-1] == FEW_ERRORS
    assert [constraint.text for constraint in parse_constraints(["error_rate<50%"])] == ["error_rate<50%"]


@pytest.mark.parametrize(
    ("text", "sign"),
    [("p95<50ms", 0), ("p95<51ms", -1), ("p95<49ms", 1), ("throughput>51", 1), ("memory<1G", 0), ("error_rate<1%", 1)],
)
def test_violation_positive_beyond_limit(text: str, sign: int) -> None:
    """A violation has the sign of the distance from the limit."""
    violation = parse_constraint(text).violation(MEASUREMENT)
    assert (violation > 0) - (violation < 0) == sign


def test_nothing_answered_meets_no_goal() -> None:
    """Without an answer, or with an unknown quantity, no constraint is met."""
    silent = MEASUREMENT.model_copy(update={"throughput": 0})
    assert not Goal(constraints=parse_constraints(["error_rate<50%"])).is_met(silent)
    unknown = MEASUREMENT.model_copy(update={"memory_bytes": None})
    assert parse_constraint("memory<9G").violation(unknown) == math.inf


def test_cost_of_inferences() -> None:
    """The cost is the price of an hour by the inferences of an hour, and needs a price."""
    goal = Goal(objective="cost", usd_per_hour=0.36)
    assert goal.value(MEASUREMENT) == pytest.approx(2.0)
    assert goal.gain(MEASUREMENT, MEASUREMENT.model_copy(update={"throughput": 25})) == pytest.approx(2)
    with pytest.raises(ValueError, match="needs a price"):
        Goal(objective="cost")


@pytest.mark.parametrize(
    ("text", "budget"), [("40", Budget(runs=40)), ("4m", Budget(seconds=240)), ("2h", Budget(seconds=7200))]
)
def test_budget_is_runs_or_time(text: str, budget: Budget) -> None:
    """A number is runs, and a number with a unit is a time."""
    assert parse_budget(text, seconds=8) == budget


@pytest.mark.parametrize("text", ["", "1.5", "-3", "20 days", "5", "90s", "0h", "9" * 5000])
def test_wrong_budget_is_refused(text: str) -> None:
    """What is no budget, or has no room for any search, is refused."""
    with pytest.raises(UsageError, match="--budget"):
        parse_budget(text, seconds=8)


@pytest.mark.parametrize("runs", [MIN_RUNS, 20, 29, 30, 67, 1000])
def test_only_runs_divided(runs: int) -> None:
    """The phases together have as many runs as the budget, and the last rung has the full length."""
    schedule = schedule_runs(runs, seconds=10)
    assert schedule.runs == runs
    assert schedule.screening > sum(schedule.rungs) > 0
    assert schedule.rung_seconds(len(schedule.rungs)) == 10


def test_time_is_filled_with_runs() -> None:
    """A time has as many runs as fit; without a budget, a tenth of the grid is searched."""
    schedule = schedule_within(900, max_runs=200, seconds=8)
    assert schedule.duration_seconds <= 900 < schedule_runs(schedule.runs + 1, seconds=8).duration_seconds
    assert default_schedule(400, seconds=8).search_runs == 40
    assert default_schedule(30, seconds=8).search_runs == 17
