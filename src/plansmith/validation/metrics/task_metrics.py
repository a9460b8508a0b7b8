"""Task metrics of the reference and of the candidate on the same samples.

Each takes in batches of answers and labels and keeps a few numbers a sample. Without labels there is no telling which
of two different answers is right: what is measured then is how many samples get the reference's own answer, so that
the reference has 1 by definition.

- Accuracy: the highest score is the label's class; with more than five classes also among the first five.
- Token F1: macro, the mean over the classes that occur in the labels, of scikit-learn's `f1_score`. Most tokens
  belong to one class ("no name") and the micro average, which for one class a token is the accuracy, says little of
  the others. It is no entity F1: labels are numbers here, without the names that say where an entity begins.
- Answers: of the best pair of start and end (end not before start, at most 30 tokens) exact match, and F1 of the
  tokens' places that both spans hold.
- Spearman: of scores with the cosine of two samples' embeddings, or with the model's one value a sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from plansmith.records.validation import Interval, TaskMetric

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]


Z = 1.959963984540054
"""97.5 % of a standard normal distribution lie below."""

RESAMPLES = 2000
_SEED = 0
_CELLS_AT_ONCE = 4_000_000
_BISECTIONS = 60

FIRST = 5
LONGEST_ANSWER = 30
FEWEST_CHANGED = 10
"""Below so many samples that changed, a bootstrap has too little to draw from (see intervals)."""

FEWEST_PAIRS = 30
"""Below so many pairs a bootstrapped correlation is too sure of itself."""

_ROUNDING = 1e-9
Ranking = tuple["NDArray[np.int64]", "NDArray[np.int64]", "NDArray[np.int64]"]


def share(count: int, samples: int) -> Interval:
    """Return the proportion of samples with a property, with Wilson's interval."""
    value, spread = count / samples, Z * Z / samples
    middle = (value + spread / 2) / (1 + spread)
    half = math.sqrt(value * (1 - value) * spread + spread * spread / 4) / (1 + spread)
    return Interval(value=value, low=max(0.0, min(middle - half, value)), high=min(1.0, max(middle + half, value)))


def paired_difference(gained: int, lost: int, samples: int) -> Interval:
    """Return the difference of two paired proportions, second minus first, with Tango's interval.

    Args:
        gained: samples that only the second has right.
        lost: samples that only the first has right.
        samples: how many there are, with those that both or neither has right.
    """
    value = (gained - lost) / samples

    def end(outside: float, sign: float) -> float:
        inside = value
        for _ in range(_BISECTIONS):
            middle = (inside + outside) / 2
            if sign * _tango_score(gained, lost, samples, middle) > Z:
                outside = middle
            else:
                inside = middle
        return inside

    return Interval(value=value, low=end(-1.0, 1.0), high=end(1.0, -1.0))


def bootstrapped(statistic: Callable[[Floats], Floats], samples: int) -> Interval:
    """Return the bootstrap interval of a statistic: samples are redrawn with replacement.

    Args:
        statistic: takes how often each sample counts, [draws, samples], and gives one number a draw; NaN where
            the draw has none, which is then left out.
        samples: how many there are.
    """
    value = float(statistic(np.ones((1, samples)))[0])
    rng = np.random.default_rng(_SEED)
    at_once = max(1, _CELLS_AT_ONCE // samples)
    drawn = [statistic(_draw(rng, min(at_once, RESAMPLES - done), samples)) for done in range(0, RESAMPLES, at_once)]
    values = np.concatenate(drawn)
    values = values[np.isfinite(values)]
    low, high = np.quantile(values, (0.025, 0.975)) if values.size else (value, value)
    return Interval(value=value, low=min(float(low), value), high=max(float(high), value))


def at_least(interval: Interval, floor: Interval) -> Interval:
    """Return an interval widened to cover at least another one around the same value."""
    below, above = floor.value - floor.low, floor.high - floor.value
    return Interval(
        value=interval.value,
        low=min(interval.low, interval.value - below),
        high=max(interval.high, interval.value + above),
    )


def _draw(rng: np.random.Generator, draws: int, samples: int) -> Floats:
    """Bootstrap resampling: how often each sample was drawn, [draws, samples]."""
    picked = rng.integers(samples, size=(draws, samples)) + samples * np.arange(draws)[:, None]
    return np.bincount(picked.ravel(), minlength=draws * samples).reshape(draws, samples).astype(np.float64)


def _tango_score(gained: int, lost: int, samples: int, difference: float) -> float:
    """Tango's score statistic: how many standard errors the counts are away from a given true difference.

    The nuisance, the share that only the first has right, is estimated under that difference: the larger root of
    the likelihood equation 2n q² + (-g - l + (2n - g + l) d) q - l d (1 - d) = 0.
    """
    linear = -gained - lost + (2 * samples - gained + lost) * difference
    constant = -lost * difference * (1 - difference)
    root = (math.sqrt(max(0.0, linear * linear - 8 * samples * constant)) - linear) / (4 * samples)
    variance = samples * (2 * root + difference * (1 - difference))
    distance = gained - lost - samples * difference
    if variance <= 0:
        return math.copysign(math.inf, distance) if distance else 0.0
    return distance / math.sqrt(variance)


def metric_verdict(name: str, samples: int, reference: float, change: Interval, max_drop: float) -> TaskMetric:
    """Return a metric checked against its maximum drop.

    It fails where the change itself is beyond the limit; it is proven where its whole interval is within.
    """
    failures = []
    if change.value < -max_drop - _ROUNDING:
        note = f", which lets none of {samples} samples change" if samples * max_drop < 1 else ""
        failures.append(
            f"is {reference + change.value:.4f}, that of FP32 {reference:.4f}: lower by {-change.value:.4f}"
            f" (95 % interval {-change.high:.4f} to {-change.low:.4f}), allowed {max_drop:g}{note}"
        )
    return TaskMetric(
        name=name,
        samples=samples,
        reference=reference,
        candidate=reference + change.value,
        change=change,
        max_drop=max_drop,
        proven=change.low >= -max_drop - _ROUNDING,
        failures=tuple(failures),
    )


def share_metric(name: str, reference: Flags, candidate: Flags, max_drop: float) -> TaskMetric:
    """Return the accuracy metric of two candidates on the same samples."""
    gained, lost = int(np.sum(candidate & ~reference)), int(np.sum(reference & ~candidate))
    change = paired_difference(gained, lost, len(reference))
    return metric_verdict(name, len(reference), float(np.mean(reference)), change, max_drop)


def agreement_metric(name: str, same: Flags, max_drop: float) -> TaskMetric:
    """Return the proportion of samples on which the candidate agrees with the reference."""
    agreement = share(int(np.sum(same)), len(same))
    change = Interval(value=agreement.value - 1, low=agreement.low - 1, high=agreement.high - 1)
    return of_agreement(metric_verdict(name, len(same), 1.0, change, max_drop))


def token_agreement_metric(name: str, same: Ints, tokens: Ints, max_drop: float) -> TaskMetric:
    """Return the proportion of tokens that agree with the reference; samples, not tokens, are independent."""
    samples = len(tokens)
    interval = bootstrapped(lambda weights: (weights @ same) / np.maximum(weights @ tokens, 1) - 1, samples)
    change = widened(interval, (same - tokens).astype(np.float64))
    return of_agreement(metric_verdict(name, samples, 1.0, change, max_drop))


def of_agreement(metric: TaskMetric) -> TaskMetric:
    """Return a metric whose correct answers are the reference's own."""
    return metric.model_copy(update={"agreement": True})


def ranks_right(scores: Floats, label: int, first: int) -> bool:
    """Whether a label's class is among the top scores; ties go to the lower class, and NaN never counts."""
    if not np.isfinite(scores).all():
        return False
    before = np.count_nonzero(scores > scores[label]) + np.count_nonzero(scores[:label] == scores[label])
    return bool(before < first)


class Accuracy:
    """Accuracy of class scores, one vector per sample."""

    def __init__(self) -> None:
        self._right: dict[int, tuple[list[bool], list[bool]]] = {1: ([], []), FIRST: ([], [])}
        self._classes = 0

    def add(self, reference: Floats, candidate: Floats, label: int) -> None:
        """Add one sample."""
        self._classes = len(reference)
        for first, sides in self._right.items():
            for side, scores in zip(sides, (reference, candidate), strict=True):
                side.append(ranks_right(scores, label, first))

    def results(self, max_drop: float) -> list[TaskMetric]:
        """Return top-1 accuracy, and top-5 if there are more than five classes."""
        return [
            share_metric(f"top-{first} accuracy", np.array(reference), np.array(candidate), max_drop)
            for first, (reference, candidate) in self._right.items()
            if reference and first < max(2, self._classes)
        ]


class TokenF1:
    """Macro F1 of class scores, one vector per token."""

    def __init__(self) -> None:
        self._truth: list[Ints] = []
        self._chosen: tuple[list[Ints], list[Ints]] = ([], [])

    def add(self, reference: Ints, candidate: Ints, label: Ints) -> None:
        """Add one sample: each token's predicted class and its label; -1 is no class."""
        self._truth.append(label)
        self._chosen[0].append(reference)
        self._chosen[1].append(candidate)

    def results(self, max_drop: float) -> list[TaskMetric]:
        """Return macro F1 over the classes in the labels; the bootstrap resamples whole samples."""
        classes = np.unique(np.concatenate(self._truth)) if self._truth else np.zeros(0, np.int64)
        if not classes.size:
            return []
        truth = _counts(self._truth, classes)
        counts = []
        for side in self._chosen:
            hits = [np.where(t == c, t, -1) for t, c in zip(self._truth, side, strict=True)]
            counts.append((_counts(hits, classes), _counts(side, classes)))

        def macro(weights: Floats, hit: Floats, chosen: Floats) -> Floats:
            labelled = weights @ truth
            f1 = 2 * (weights @ hit) / np.maximum(labelled + weights @ chosen, 1)
            present = labelled > 0
            return np.asarray((f1 * present).sum(axis=1) / np.maximum(present.sum(axis=1), 1))

        def change(weights: Floats) -> Floats:
            return macro(weights, *counts[1]) - macro(weights, *counts[0])

        samples = len(self._truth)
        better = (counts[1][0].sum(axis=1) - counts[0][0].sum(axis=1)).astype(np.float64)
        interval = widened(bootstrapped(change, samples), better)
        reference = float(macro(np.ones((1, samples)), *counts[0])[0])
        return [metric_verdict("token F1 (macro)", samples, reference, interval, max_drop)]


class AnswerF1:
    """Exact match and F1 of extracted answers, by start and end position.

    Args:
        names: of the two measures.
    """

    def __init__(self, names: tuple[str, str] = ("exact match", "answer F1")) -> None:
        self._names = names
        self._exact: tuple[list[bool], list[bool]] = ([], [])
        self._f1: tuple[list[float], list[float]] = ([], [])

    def add(self, reference: tuple[int, int], candidate: tuple[int, int], label: tuple[int, int]) -> None:
        """Add one sample: the predicted spans and the correct one."""
        for side, span in enumerate((reference, candidate)):
            self._exact[side].append(span == label)
            self._f1[side].append(overlap_f1(span, label))

    def results(self, max_drop: float) -> list[TaskMetric]:
        """Return exact match and F1."""
        if not self._exact[0]:
            return []
        exact = share_metric(self._names[0], np.array(self._exact[0]), np.array(self._exact[1]), max_drop)
        reference, candidate = (np.array(side) for side in self._f1)
        difference = candidate - reference
        samples = len(difference)
        change = widened(bootstrapped(lambda weights: np.asarray(weights @ difference / samples), samples), difference)
        return [exact, metric_verdict(self._names[1], samples, float(np.mean(reference)), change, max_drop)]


class Spearman:
    """Spearman's rank correlation of a prediction per pair with the pair's score."""

    def __init__(self) -> None:
        self._scores: list[float] = []
        self._predicted: tuple[list[float], list[float]] = ([], [])

    def add(self, reference: float, candidate: float, score: float) -> None:
        """Add one pair."""
        self._scores.append(score)
        self._predicted[0].append(reference)
        self._predicted[1].append(candidate)

    def results(self, max_drop: float) -> list[TaskMetric]:
        """Return the rank correlation, which needs three pairs."""
        pairs = len(self._scores)
        if pairs < 3:
            return []
        score, *sides = (_ranking(np.array(side)) for side in (self._scores, *self._predicted))

        def change(weights: Floats) -> Floats:
            return weighted_correlation(weights, score, sides[1]) - weighted_correlation(weights, score, sides[0])

        reference, candidate = (float(weighted_correlation(np.ones((1, pairs)), score, s)[0]) for s in sides)
        if not np.isfinite(reference):
            return [_nothing_to_rank(pairs, max_drop)]
        if np.isfinite(candidate):
            interval = bootstrapped(change, pairs)
        else:  # the same value for all pairs
            interval = Interval(value=-reference, low=-reference, high=-reference)
        if pairs < FEWEST_PAIRS:
            interval = at_least(interval, paired_difference(0, 0, pairs))
        return [metric_verdict("Spearman correlation", pairs, reference, interval, max_drop)]


def overlap_f1(span: tuple[int, int], label: tuple[int, int]) -> float:
    """Return the F1 of the positions in two spans, ends included."""
    common = min(span[1], label[1]) - max(span[0], label[0]) + 1
    if common <= 0:
        return 0.0
    return 2 * common / (span[1] - span[0] + 1 + label[1] - label[0] + 1)


def best_span(start: Floats, end: Floats) -> tuple[int, int]:
    """Return the span with the largest sum of scores; (-1, -1) if the scores are NaN."""
    if not (np.isfinite(start).all() and np.isfinite(end).all() and start.size):
        return -1, -1
    total = start[:, None] + end[None, :]
    places = np.arange(len(start))
    length = places[None, :] - places[:, None]
    total[(length < 0) | (length >= LONGEST_ANSWER)] = -np.inf
    place = int(total.argmax())
    return place // len(start), place % len(start)


def widened(interval: Interval, difference: Floats) -> Interval:
    """Return a bootstrap interval, widened to at least Tango's if hardly any sample changed."""
    better, worse = int(np.sum(difference > 0)), int(np.sum(difference < 0))
    if better + worse >= FEWEST_CHANGED:
        return interval
    return at_least(interval, paired_difference(better, worse, len(difference)))


def _ranking(values: Floats) -> Ranking:
    """A ranking: the sort order, where each group of ties begins in it, and the group of each value."""
    order = np.argsort(values, kind="stable")
    sorted_values = values[order]
    new = np.concatenate(([True], sorted_values[1:] != sorted_values[:-1]))
    groups = np.empty(len(values), np.int64)
    groups[order] = np.cumsum(new) - 1
    return order, np.flatnonzero(new), groups


def weighted_correlation(weights: Floats, first: Ranking, second: Ranking) -> Floats:
    """Return Spearman's correlation with values weighted by count, per row of weights; NaN if all are equal."""
    x, y = (_ranks(weights, ranking) for ranking in (first, second))
    total = weights.sum(axis=1, keepdims=True)
    x, y = (side - (weights * side).sum(axis=1, keepdims=True) / total for side in (x, y))
    power = (weights * x * x).sum(axis=1) * (weights * y * y).sum(axis=1)
    product = (weights * x * y).sum(axis=1)
    return np.where(power > 0, product / np.sqrt(np.where(power > 0, power, 1)), np.nan)


def _ranks(weights: Floats, ranking: Ranking) -> Floats:
    """The mean rank of each value; ties share theirs."""
    order, starts, groups = ranking
    counts = np.add.reduceat(weights[:, order], starts, axis=1)
    ranks = np.cumsum(counts, axis=1) - counts + (counts + 1) / 2
    return np.asarray(ranks[:, groups])


def _counts(rows: list[Ints], classes: Ints) -> Floats:
    """How often each class occurs in each sample, [samples, classes]."""
    flat = np.concatenate(rows)
    sample = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    is_known = np.isin(flat, classes)
    cell = sample[is_known] * len(classes) + np.searchsorted(classes, flat[is_known])
    return np.bincount(cell, minlength=len(rows) * len(classes)).reshape(len(rows), -1).astype(np.float64)


def _nothing_to_rank(pairs: int, max_drop: float) -> TaskMetric:
    unknown = Interval(value=0.0, low=-2.0, high=2.0)
    metric = metric_verdict("Spearman correlation", pairs, 0.0, unknown, max_drop)
    return metric.model_copy(update={"failures": ("all scores, or all of the model's answers, are the same",)})
