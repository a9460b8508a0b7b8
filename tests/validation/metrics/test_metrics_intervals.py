"""The intervals are those of the literature, and hold the truth as often as they say."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from plansmith.records.validation import Interval
from plansmith.validation.metrics.task_metrics import (
    Spearman,
    Z,
    at_least,
    bootstrapped,
    paired_difference,
    share,
    widened,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


@pytest.mark.parametrize(("count", "samples"), [(0, 10), (1, 10), (250, 256), (256, 256)])
def test_share_interval_follows_wilson(count: int, samples: int) -> None:
    """The interval of a share is the one of Wilson."""
    expected = scipy.stats.binomtest(count, samples).proportion_ci(method="wilson")
    estimate = share(count, samples)
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx(
        (count / samples, expected.low, expected.high)
    )


@pytest.mark.parametrize(("gained", "lost", "samples"), [(3, 9, 60), (1, 0, 256), (20, 25, 100), (0, 5, 40)])
def test_interval_ends_just_insignificant(gained: int, lost: int, samples: int) -> None:
    """At the ends of a difference the score test is just not significant."""
    interval = paired_difference(gained, lost, samples)
    for end, sign in ((interval.low, 1), (interval.high, -1)):

        def unlikelihood(nuisance: float, difference: float = end) -> float:
            cells = (nuisance + difference, nuisance, 1 - 2 * nuisance - difference)
            counts = (gained, lost, samples - gained - lost)
            return -sum(n * math.log(max(p, 1e-300)) for n, p in zip(counts, cells, strict=True))

        bounds = (max(0.0, -end), (1 - end) / 2)
        nuisance = scipy.optimize.minimize_scalar(
            unlikelihood, bounds=bounds, method="bounded", options={"xatol": 1e-10}
        ).x
        deviation = np.sqrt(samples * (2 * nuisance + end - end**2))
        assert (gained - lost - samples * end) / deviation == pytest.approx(sign * Z, abs=1e-3)


def test_unchanged_interval_has_width() -> None:
    """Where nothing changed the interval still has a width."""
    interval = paired_difference(0, 0, 256)
    assert (interval.value, interval.low, interval.high) == pytest.approx(
        (0, -(Z**2) / (256 + Z**2), Z**2 / (256 + Z**2))
    )


@pytest.mark.parametrize("counts", [(10, 0, 10), (0, 10, 10), (5, 5, 10), (0, 0, 1), (1, 0, 1)])
def test_difference_stays_within_one(counts: tuple[int, int, int]) -> None:
    """A difference stays between minus one and one."""
    interval = paired_difference(*counts)
    assert -1 <= interval.low <= interval.value <= interval.high <= 1


def test_exchange_reverses_interval() -> None:
    """Exchanging the two turns the interval round."""
    first, second = paired_difference(4, 11, 80), paired_difference(11, 4, 80)
    assert (first.low, first.high) == pytest.approx((-second.high, -second.low))


@pytest.mark.parametrize(("samples", "gained", "lost"), [(40, 0.05, 0.1), (256, 0.01, 0.02), (100, 0.2, 0.1)])
def test_difference_interval_covers_95_percent(samples: int, gained: float, lost: float) -> None:
    """The interval of a difference holds the truth in 95 of 100."""
    interval = cache(paired_difference)
    drawn = np.random.default_rng(1).multinomial(samples, [gained, lost, 1 - gained - lost], size=3000)
    hits = [(i := interval(int(g), int(x), samples)).low <= gained - lost <= i.high for g, x, _ in drawn]
    assert 0.93 <= np.mean(hits) <= 0.985


def test_bootstrap_matches_standard_error() -> None:
    """A bootstrapped mean has the interval of its standard error."""
    values = np.random.default_rng(2).normal(size=400)
    interval = bootstrapped(lambda weights: np.asarray(weights @ values / 400), 400)
    half = Z * values.std() / 20
    assert interval.value == pytest.approx(values.mean())
    assert (interval.low, interval.high) == pytest.approx((values.mean() - half, values.mean() + half), abs=half / 10)


def test_bootstrap_reproducible_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bootstrap is the same each time and much the same in many parts."""
    values = np.random.default_rng(3).normal(size=50)

    def interval() -> Interval:
        return bootstrapped(lambda weights: np.asarray(weights @ values / 50), 50)

    whole = interval()
    assert interval() == whole
    monkeypatch.setattr("plansmith.validation.metrics.task_metrics._CELLS_AT_ONCE", 50 * 7)
    parts = interval()
    assert (parts.low, parts.high) == pytest.approx((whole.low, whole.high), abs=(whole.high - whole.low) / 20)


def pairs(rng: np.random.Generator, count: int) -> tuple[NDArray[np.float64], ...]:
    """Scores, and the predictions of a better and a worse model that make much the same mistakes."""
    score, shared, own = rng.normal(size=(3, count))
    reference = score + 0.5 * shared
    return score, reference, reference + 0.6 * own


@pytest.mark.slow
def test_spearman_change_interval_covers_truth() -> None:
    """The interval of a change of Spearman's correlation holds the truth."""
    score, reference, candidate = pairs(np.random.default_rng(5), 100_000)
    truth = scipy.stats.spearmanr(candidate, score).statistic - scipy.stats.spearmanr(reference, score).statistic
    rng, hits = np.random.default_rng(6), []
    for _ in range(60):
        spearman = Spearman()
        for s, r, c in zip(*pairs(rng, 100), strict=True):
            spearman.add(float(r), float(c), float(s))
        (metric,) = spearman.results(1.0)
        hits.append(metric.change.low <= truth <= metric.change.high)
    assert np.mean(hits) >= 0.88


def test_tiny_change_keeps_count_interval() -> None:
    """Hardly any change gives no narrower interval than its counts."""
    difference = np.zeros(100)
    assert widened(Interval(value=0, low=0, high=0), difference) == paired_difference(0, 0, 100)
    difference[:50] = 0.01
    narrow = Interval(value=0.005, low=0.004, high=0.006)
    assert widened(narrow, difference) == narrow


def test_floor_moves_without_narrowing() -> None:
    """A floor moves with the value and never narrows."""
    wide = Interval(value=0.5, low=0.1, high=0.9)
    assert at_least(wide, Interval(value=0, low=-0.1, high=0.2)) == wide
    moved = at_least(Interval(value=0.5, low=0.49, high=0.51), Interval(value=0, low=-0.1, high=0.2))
    assert (moved.low, moved.high) == pytest.approx((0.4, 0.7))
