"""The task's measures give what scikit-learn and SciPy give, and are held to what they may lose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

from plansmith.records.validation import Interval
from plansmith.validation.metrics.task_metrics import (
    LONGEST_ANSWER,
    Accuracy,
    AnswerF1,
    Spearman,
    TokenF1,
    agreement_metric,
    best_span,
    metric_verdict,
    overlap_f1,
    ranks_right,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

RNG = np.random.default_rng(4)


@pytest.fixture(autouse=True)
def same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test draws the same numbers, whichever ran before."""
    monkeypatch.setitem(globals(), "RNG", np.random.default_rng(4))


def scores(samples: int, classes: int) -> NDArray[np.float64]:
    return RNG.normal(size=(samples, classes))


class TestAccuracy:
    def test_accuracy_matches_scikit_learn(self) -> None:
        """Accuracy is that of scikit-learn."""
        reference, candidate, labels = scores(200, 9), scores(200, 9), RNG.integers(0, 9, 200)
        accuracy = Accuracy()
        for r, c, label in zip(reference, candidate, labels, strict=True):
            accuracy.add(r, c, int(label))
        top_1, top_5 = accuracy.results(1.0)
        assert [top_1.name, top_5.name] == ["top-1 accuracy", "top-5 accuracy"]
        for metric, k in ((top_1, 1), (top_5, 5)):
            expected = [sklearn.metrics.top_k_accuracy_score(labels, s, k=k) for s in (reference, candidate)]
            assert [metric.reference, metric.candidate] == pytest.approx(expected)

    def test_five_classes_lack_top_five(self) -> None:
        """Five classes have no first five."""
        accuracy = Accuracy()
        accuracy.add(np.arange(5.0), np.arange(5.0), 4)
        assert [m.name for m in accuracy.results(1.0)] == ["top-1 accuracy"]

    def test_equal_scores_are_no_hit(self) -> None:
        """Equal scores are no hit for every class."""
        same = np.zeros(10)
        assert [ranks_right(same, label, 1) for label in range(10)] == [True] + [False] * 9
        assert sum(ranks_right(same, label, 5) for label in range(10)) == 5

    def test_non_number_scores_are_wrong(self) -> None:
        """Scores that are no numbers are wrong."""
        assert not ranks_right(np.array([0.0, np.nan]), 0, 1)
        assert not ranks_right(np.full(3, np.inf), 0, 5)


class TestTokenF1:
    def test_token_f1_matches_scikit_learn(self) -> None:
        """Token F1 is the macro average of scikit-learn over the classes in the labels."""
        lengths = RNG.integers(1, 12, 60)
        truth = [RNG.choice([0, 1, 4], n, p=[0.8, 0.15, 0.05]) for n in lengths]
        sides = [
            [np.where(RNG.random(len(t)) < share, t, RNG.integers(0, 6, len(t))) for t in truth] for share in (0.9, 0.7)
        ]
        f1 = TokenF1()
        for t, r, c in zip(truth, *sides, strict=True):
            f1.add(r, c, t)
        (metric,) = f1.results(1.0)
        flat = np.concatenate(truth)
        expected = [
            sklearn.metrics.f1_score(flat, np.concatenate(side), labels=np.unique(flat), average="macro")
            for side in sides
        ]
        assert [metric.reference, metric.candidate] == pytest.approx(expected)
        assert metric.samples == 60
        assert metric.change.low < metric.change.value < metric.change.high < 0

    def test_unlabelled_tokens_measure_nothing(self) -> None:
        """Without a labelled token nothing is measured."""
        assert TokenF1().results(1.0) == []


class TestAnswers:
    def test_f1_counts_common_places(self) -> None:
        """F1 counts the places that both spans hold."""
        for _ in range(200):
            (a, b), (c, d) = (np.sort(RNG.integers(0, 12, 2)) for _ in range(2))
            first, second = set(range(a, b + 1)), set(range(c, d + 1))
            expected = 2 * len(first & second) / (len(first) + len(second))
            assert overlap_f1((int(a), int(b)), (int(c), int(d))) == pytest.approx(expected)

    def test_best_allowed_span_wins(self) -> None:
        """The best span is the best of all that are allowed."""
        for _ in range(20):
            start, end = RNG.normal(size=(2, 50))
            allowed = [(i, j) for i in range(50) for j in range(i, min(50, i + LONGEST_ANSWER))]
            assert best_span(start, end) == max(allowed, key=lambda s: start[s[0]] + end[s[1]])

    def test_non_number_answer_is_wrong(self) -> None:
        """An answer that is no number is wrong even where there is no answer."""
        span = best_span(np.array([np.nan, 1.0]), np.array([1.0, 1.0]))
        assert overlap_f1(span, (0, 0)) == 0.0
        assert span != (0, 0)

    def test_exact_match_and_f1_told(self) -> None:
        """Exact match and F1 are told for both."""
        answers = AnswerF1()
        for _ in range(50):
            answers.add((2, 3), (2, 3), (2, 3))
            answers.add((2, 3), (2, 4), (2, 3))
        exact, f1 = answers.results(0.3)
        assert (exact.name, exact.reference, exact.candidate) == ("exact match", 1.0, 0.5)
        assert (f1.name, f1.reference) == ("answer F1", 1.0)
        assert f1.candidate == pytest.approx(0.9)
        assert exact.failures
        assert not f1.failures


class TestSpearman:
    def test_spearman_matches_scipy_with_ties(self) -> None:
        """The Spearman correlation is that of SciPy, with ties."""
        score = RNG.integers(0, 6, 150).astype(float)
        reference = (score + RNG.normal(size=150)).round(1)
        candidate = (score + 2 * RNG.normal(size=150)).round(1)
        spearman = Spearman()
        for row in zip(reference, candidate, score, strict=True):
            spearman.add(*map(float, row))
        (metric,) = spearman.results(1.0)
        expected = [scipy.stats.spearmanr(side, score).statistic for side in (reference, candidate)]
        assert [metric.reference, metric.candidate] == pytest.approx(expected)
        assert metric.change.low < metric.change.value < metric.change.high

    def test_constant_candidate_loses_everything(self) -> None:
        """A candidate that answers the same to all pairs loses everything."""
        spearman = Spearman()
        for score in range(40):
            spearman.add(score / 40, 0.5, float(score))
        (metric,) = spearman.results(0.01)
        assert [metric.reference, metric.candidate] == pytest.approx([1.0, 0.0])
        assert metric.failures

    def test_constant_scores_prove_nothing(self) -> None:
        """Scores that are all the same prove nothing."""
        spearman = Spearman()
        for place in range(40):
            spearman.add(place / 40, place / 40, 3.0)
        (metric,) = spearman.results(0.01)
        assert metric.failures == ("all scores, or all of the model's answers, are the same",)
        assert not metric.proven

    def test_few_pairs_never_prove_anything(self) -> None:
        spearman = Spearman()
        for score in range(5):
            spearman.add(score / 5, score / 5, float(score))
        (metric,) = spearman.results(0.01)
        assert (metric.failures, metric.proven) == ((), False)


class TestTheVerdict:
    def test_drop_beyond_limit_fails(self) -> None:
        """A drop beyond the limit fails, and tells both values and the interval."""
        metric = metric_verdict("top-1 accuracy", 400, 0.9, Interval(value=-0.03, low=-0.05, high=-0.01), 0.01)
        assert metric.failures == (
            "is 0.8700, that of FP32 0.9000: lower by 0.0300 (95 % interval 0.0100 to 0.0500), allowed 0.01",
        )
        assert not metric.proven

    def test_drop_at_limit_passes(self) -> None:
        """A drop of exactly the limit passes."""
        change = Interval(value=0.57 - 0.58, low=-0.02, high=0.0)
        assert not metric_verdict("top-1 accuracy", 100, 0.58, change, 0.01).failures

    def test_interval_beyond_limit_unproven(self) -> None:
        """An interval beyond the limit passes as not proven."""
        metric = metric_verdict("top-1 accuracy", 50, 0.9, Interval(value=0.0, low=-0.07, high=0.07), 0.01)
        assert (metric.failures, metric.proven) == ((), False)

    def test_interval_within_limit_proven(self) -> None:
        """An interval within the limit is proven."""
        metric = metric_verdict("top-1 accuracy", 5000, 0.9, Interval(value=-0.002, low=-0.006, high=0.002), 0.01)
        assert metric.proven

    def test_single_sample_breach_told(self) -> None:
        """A limit that one sample breaks is told."""
        (failure,) = metric_verdict("top-1 accuracy", 20, 0.9, Interval(value=-0.05, low=-0.2, high=0.1), 0.01).failures
        assert failure.endswith("allowed 0.01, which lets none of 20 samples change")

    def test_reference_agrees_with_itself(self) -> None:
        """The reference agrees with itself by definition."""
        metric = agreement_metric("same nearest neighbour", np.array([True] * 19 + [False]), 0.1)
        assert [metric.reference, metric.candidate, metric.change.value] == pytest.approx([1.0, 0.95, -0.05])
        assert metric.change.high <= 0
