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
from plansmith.validation.metrics.confidence import Z, at_least, bootstrapped, paired_difference, share
from plansmith.validation.metrics.task_metrics import Spearman, widened

if TYPE_CHECKING:
    from numpy.typing import NDArray


@pytest.mark.parametrize(("count", "samples"), [(0, 10), (1, 10), (250, 256), (256, 256)])
def test_the_interval_of_a_share_is_the_one_of_wilson(count: int, samples: int) -> None:
    expected = scipy.stats.binomtest(count, samples).proportion_ci(method="wilson")
    found = share(count, samples)
    assert (found.value, found.low, found.high) == pytest.approx((count / samples, expected.low, expected.high))


@pytest.mark.parametrize(("gained", "lost", "samples"), [(3, 9, 60), (1, 0, 256), (20, 25, 100), (0, 5, 40)])
def test_at_the_ends_of_a_difference_the_score_test_is_just_not_significant(
    gained: int, lost: int, samples: int
) -> None:
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


def test_where_nothing_changed_the_interval_still_has_a_width() -> None:
    interval = paired_difference(0, 0, 256)
    assert (interval.value, interval.low, interval.high) == pytest.approx(
        (0, -(Z**2) / (256 + Z**2), Z**2 / (256 + Z**2))
    )


@pytest.mark.parametrize("counts", [(10, 0, 10), (0, 10, 10), (5, 5, 10), (0, 0, 1), (1, 0, 1)])
def test_a_difference_stays_between_minus_one_and_one(counts: tuple[int, int, int]) -> None:
    interval = paired_difference(*counts)
    assert -1 <= interval.low <= interval.value <= interval.high <= 1


def test_exchanging_the_two_turns_the_interval_round() -> None:
    one, other = paired_difference(4, 11, 80), paired_difference(11, 4, 80)
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low))


@pytest.mark.parametrize(("samples", "gained", "lost"), [(40, 0.05, 0.1), (256, 0.01, 0.02), (100, 0.2, 0.1)])
def test_the_interval_of_a_difference_holds_the_truth_in_95_of_100(samples: int, gained: float, lost: float) -> None:
    interval = cache(paired_difference)
    drawn = np.random.default_rng(1).multinomial(samples, [gained, lost, 1 - gained - lost], size=3000)
    hits = [(i := interval(int(g), int(x), samples)).low <= gained - lost <= i.high for g, x, _ in drawn]
    assert 0.93 <= np.mean(hits) <= 0.985


def test_a_bootstrapped_mean_has_the_interval_of_its_standard_error() -> None:
    values = np.random.default_rng(2).normal(size=400)
    interval = bootstrapped(lambda weights: np.asarray(weights @ values / 400), 400)
    half = Z * values.std() / 20
    assert interval.value == pytest.approx(values.mean())
    assert (interval.low, interval.high) == pytest.approx((values.mean() - half, values.mean() + half), abs=half / 10)


def test_a_bootstrap_is_the_same_each_time_and_much_the_same_in_many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(3).normal(size=50)

    def interval() -> Interval:
        return bootstrapped(lambda weights: np.asarray(weights @ values / 50), 50)

    whole = interval()
    assert interval() == whole
    monkeypatch.setattr("plansmith.validation.metrics.confidence._CELLS_AT_ONCE", 50 * 7)
    parts = interval()
    assert (parts.low, parts.high) == pytest.approx((whole.low, whole.high), abs=(whole.high - whole.low) / 20)


def pairs(rng: np.random.Generator, count: int) -> tuple[NDArray[np.float64], ...]:
    """Scores, and the predictions of a better and a worse model that make much the same mistakes."""
    score, shared, own = rng.normal(size=(3, count))
    reference = score + 0.5 * shared
    return score, reference, reference + 0.6 * own


@pytest.mark.slow
def test_the_interval_of_a_change_of_spearman_holds_the_truth() -> None:
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


def test_hardly_any_change_gives_no_narrower_interval_than_its_counts() -> None:
    difference = np.zeros(100)
    assert widened(Interval(value=0, low=0, high=0), difference) == paired_difference(0, 0, 100)
    difference[:50] = 0.01
    narrow = Interval(value=0.005, low=0.004, high=0.006)
    assert widened(narrow, difference) == narrow


def test_a_floor_moves_with_the_value_and_never_narrows() -> None:
    wide = Interval(value=0.5, low=0.1, high=0.9)
    assert at_least(wide, Interval(value=0, low=-0.1, high=0.2)) == wide
    moved = at_least(Interval(value=0.5, low=0.49, high=0.51), Interval(value=0, low=-0.1, high=0.2))
    assert (moved.low, moved.high) == pytest.approx((0.4, 0.7))
