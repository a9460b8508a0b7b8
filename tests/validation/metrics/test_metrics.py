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
    def test_it_is_that_of_scikit_learn(self) -> None:
        reference, candidate, labels = scores(200, 9), scores(200, 9), RNG.integers(0, 9, 200)
        accuracy = Accuracy()
        for r, c, label in zip(reference, candidate, labels, strict=True):
            accuracy.add(r, c, int(label))
        top_1, top_5 = accuracy.results(1.0)
        assert [top_1.name, top_5.name] == ["top-1 accuracy", "top-5 accuracy"]
        for metric, k in ((top_1, 1), (top_5, 5)):
            expected = [sklearn.metrics.top_k_accuracy_score(labels, s, k=k) for s in (reference, candidate)]
            assert [metric.reference, metric.candidate] == pytest.approx(expected)

    def test_five_classes_have_no_first_five(self) -> None:
        accuracy = Accuracy()
        accuracy.add(np.arange(5.0), np.arange(5.0), 4)
        assert [m.name for m in accuracy.results(1.0)] == ["top-1 accuracy"]

    def test_equal_scores_are_no_hit_for_every_class(self) -> None:
        same = np.zeros(10)
        assert [ranks_right(same, label, 1) for label in range(10)] == [True] + [False] * 9
        assert sum(ranks_right(same, label, 5) for label in range(10)) == 5

    def test_scores_that_are_no_numbers_are_wrong(self) -> None:
        assert not ranks_right(np.array([0.0, np.nan]), 0, 1)
        assert not ranks_right(np.full(3, np.inf), 0, 5)


class TestTokenF1:
    def test_it_is_the_macro_average_of_scikit_learn_over_the_classes_in_the_labels(self) -> None:
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

    def test_without_a_labelled_token_nothing_is_measured(self) -> None:
        assert TokenF1().results(1.0) == []


class TestAnswers:
    def test_f1_counts_the_places_that_both_spans_hold(self) -> None:
        for _ in range(200):
            (a, b), (c, d) = (np.sort(RNG.integers(0, 12, 2)) for _ in range(2))
            one, other = set(range(a, b + 1)), set(range(c, d + 1))
            expected = 2 * len(one & other) / (len(one) + len(other))
            assert overlap_f1((int(a), int(b)), (int(c), int(d))) == pytest.approx(expected)

    def test_the_best_span_is_the_best_of_all_that_are_allowed(self) -> None:
        for _ in range(20):
            start, end = RNG.normal(size=(2, 50))
            allowed = [(i, j) for i in range(50) for j in range(i, min(50, i + LONGEST_ANSWER))]
            assert best_span(start, end) == max(allowed, key=lambda s: start[s[0]] + end[s[1]])

    def test_an_answer_that_is_no_number_is_wrong_even_where_there_is_no_answer(self) -> None:
        span = best_span(np.array([np.nan, 1.0]), np.array([1.0, 1.0]))
        assert overlap_f1(span, (0, 0)) == 0.0
        assert span != (0, 0)

    def test_exact_match_and_f1_are_told_of_both(self) -> None:
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
    def test_it_is_that_of_scipy_with_ties(self) -> None:
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

    def test_a_candidate_that_answers_the_same_to_all_pairs_loses_everything(self) -> None:
        spearman = Spearman()
        for score in range(40):
            spearman.add(score / 40, 0.5, float(score))
        (metric,) = spearman.results(0.01)
        assert [metric.reference, metric.candidate] == pytest.approx([1.0, 0.0])
        assert metric.failures

    def test_scores_that_are_all_the_same_prove_nothing(self) -> None:
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
    def test_a_drop_beyond_the_limit_fails_and_tells_both_values_and_the_interval(self) -> None:
        metric = metric_verdict("top-1 accuracy", 400, 0.9, Interval(value=-0.03, low=-0.05, high=-0.01), 0.01)
        assert metric.failures == (
            "is 0.8700, that of FP32 0.9000: lower by 0.0300 (95 % interval 0.0100 to 0.0500), allowed 0.01",
        )
        assert not metric.proven

    def test_a_drop_of_exactly_the_limit_passes(self) -> None:
        change = Interval(value=0.57 - 0.58, low=-0.02, high=0.0)
        assert not metric_verdict("top-1 accuracy", 100, 0.58, change, 0.01).failures

    def test_an_interval_beyond_the_limit_passes_as_not_proven(self) -> None:
        metric = metric_verdict("top-1 accuracy", 50, 0.9, Interval(value=0.0, low=-0.07, high=0.07), 0.01)
        assert (metric.failures, metric.proven) == ((), False)
        assert "not proven by 50 samples" in metric.words()

    def test_an_interval_within_the_limit_is_proven(self) -> None:
        metric = metric_verdict("top-1 accuracy", 5000, 0.9, Interval(value=-0.002, low=-0.006, high=0.002), 0.01)
        assert metric.proven
        assert "not proven" not in metric.words()

    def test_a_limit_that_one_sample_breaks_is_told(self) -> None:
        (failure,) = metric_verdict("top-1 accuracy", 20, 0.9, Interval(value=-0.05, low=-0.2, high=0.1), 0.01).failures
        assert failure.endswith("allowed 0.01, which lets none of 20 samples change")

    def test_the_reference_agrees_with_itself_by_definition(self) -> None:
        metric = agreement_metric("same nearest neighbour", np.array([True] * 19 + [False]), 0.1)
        assert [metric.reference, metric.candidate, metric.change.value] == pytest.approx([1.0, 0.95, -0.05])
        assert metric.change.high <= 0
