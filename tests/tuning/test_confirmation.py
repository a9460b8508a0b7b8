"""What may replace the current configuration, whatever some of the rounds showed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from plansmith.tuning.budget import schedule_runs
from plansmith.tuning.configuration import Configuration
from plansmith.tuning.objective import Goal, parse_constraints
from plansmith.tuning.search import Confirmation, confirm, paired_ratio
from plansmith.tuning.trials.history import Measurement, TrialFailed

from ..support.tuning.searches import make_runner
from ..support.tuning.surface import CURRENT, INT8

OTHER = CURRENT.model_copy(update={"build": INT8})
SLOW = CURRENT.model_copy(update={"instances": 2})
SCHEDULE = schedule_runs(30, seconds=8)
FAST = Goal(constraints=parse_constraints(["p95<50ms"]))


def shows(rate: float, p95_ms: float = 30.0) -> Measurement:
    return Measurement(seconds=8, requests=800, throughput=rate, p50_ms=10, p90_ms=20, p95_ms=p95_ms, p99_ms=p95_ms)


def confirmed(
    folder: Path,
    current: Sequence[Measurement | None],
    candidates: dict[Configuration, Sequence[Measurement | None]],
    goal: Goal | None = None,
) -> tuple[Confirmation, ...]:
    """A confirmation in which each configuration shows one measurement after the other, and then the first again."""
    counts: dict[Configuration, int] = {}

    def benchmark(configuration: Configuration, _: float) -> Measurement:
        number = counts[configuration] = counts.get(configuration, -1) + 1
        measurements = {CURRENT: current, **candidates}[configuration]
        measurement = measurements[number % len(measurements)]
        if measurement is None:
            raise TrialFailed("the server died")
        return measurement

    return confirm(CURRENT, list(candidates), goal or Goal(), SCHEDULE, make_runner(benchmark, folder))


@pytest.mark.parametrize(
    ("current", "candidate", "is_better"),
    [
        ([shows(100)], [shows(80), shows(81)], False),
        ([shows(100)], [shows(90), shows(140)], False),
        ([shows(100), None], [shows(80), shows(81)], False),
        ([shows(100), *[None] * 6], [shows(200)], False),
        ([None], [shows(80), shows(81)], True),
        ([shows(100)], [shows(150), shows(151)], True),
        ([shows(100)], [shows(300), None, shows(300)], False),
    ],
    ids=["slower", "unsure", "silent once", "answered once", "never answers", "faster", "candidate silent"],
)
def test_replacement(
    current: list[Measurement | None], candidate: list[Measurement | None], is_better: bool, tmp_path: Path
) -> None:
    """Only what is significantly better, or answers where the current configuration never does, may replace it."""
    (confirmation,) = confirmed(tmp_path, current, {OTHER: candidate})
    assert confirmation.is_better is is_better


@pytest.mark.parametrize(("violations", "is_better"), [(3, True), (2, False)])
def test_median_round_decides_on_constraints(violations: int, is_better: bool, tmp_path: Path) -> None:
    """A slower candidate replaces the current configuration only if that violates a constraint by its median."""
    current = [shows(100, 90)] * violations + [shows(100)] * (5 - violations)
    (confirmation,) = confirmed(tmp_path, current, {OTHER: [shows(80), shows(81)]}, FAST)
    assert confirmation.is_better is is_better


def test_next_candidate_has_remaining_rounds(tmp_path: Path) -> None:
    """A candidate that violates a constraint twice makes room for the next one."""
    first, second = confirmed(tmp_path, [shows(100)], {SLOW: [shows(200, 90)], OTHER: [shows(150), shows(151)]}, FAST)
    assert [len(candidate.rounds) for candidate in (first, second)] == [2, 3]
    assert not first.meets_constraints
    assert second.is_better


def test_interval_of_ratios() -> None:
    """The interval of paired ratios is Student's: t(0.975, 2) = 4.303 standard errors around the geometric mean."""
    interval = paired_ratio([1.0, 2.0, 4.0])
    assert interval.value == pytest.approx(2.0)
    assert interval.high / interval.value == pytest.approx(2 ** (4.303 / 3**0.5), rel=1e-3)
    assert interval.low * interval.high == pytest.approx(4.0)
