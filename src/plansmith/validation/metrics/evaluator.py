"""Metric evaluator: compares a candidate with the reference over a sample set, batch by batch, in bounded memory.

The gate uses it on held-out samples, the search for a recipe on those of the calibration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from plansmith.data.reference import StoredCase
from plansmith.errors import UsageError
from plansmith.records.model import Component, Precision, Tensor
from plansmith.records.validation import Evaluation, TaskMetric, Tolerance
from plansmith.validation.comparison import LIMITS, Limits, Padding, cosine_of
from plansmith.validation.metrics.agreement import Agreement, Role, Task, measured_outputs, pooled, role_of
from plansmith.validation.metrics.task_metrics import (
    Accuracy,
    AnswerF1,
    Spearman,
    TokenF1,
    agreement_metric,
    best_span,
    of_agreement,
    token_agreement_metric,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.generic]
    Floats = NDArray[np.float64]
    Sides = tuple[Floats, Floats]


_LOWEST = -1e300

WORST_SAMPLES = 10


@dataclass(frozen=True)
class Sample:
    """One sample: both outputs, the valid positions (None: all), the labels and the index."""

    place: int
    answers: Mapping[str, Sides]
    valid: NDArray[np.bool_] | None
    labels: Mapping[str, Array]


class Measure(Protocol):
    """Metric of a task."""

    def add(self, sample: Sample) -> None:
        """Add one sample, in the data's order."""
        ...

    def results(self, agreement: Agreement, limits: Limits) -> list[TaskMetric]:
        """Return the metrics and whether they are within limits; empty if no sample could be measured.

        Args:
            agreement: of the (first) output that the measure reads.
            limits: what may be lost.
        """
        ...


def measure_of(task: Task, outputs: Sequence[Tensor], mask: Tensor | None) -> Measure:
    """Return the metric of a task; `outputs` as from `output_roles.measured_outputs`."""
    first = outputs[0]
    if task.metric == "accuracy":
        return _ClassificationMetric(first.name)
    if task.metric == "token-f1":
        return _OfTokens(first.name)
    if task.metric == "answer-f1":
        return _OfAnswers(first.name, outputs[1].name)
    role = role_of(first, mask, task)
    return _OfEmbeddings(first.name, task, value=role is Role.VALUE)


class _ClassificationMetric:
    def __init__(self, output: str) -> None:
        self._output = output
        self._accuracy = Accuracy()

    def add(self, sample: Sample) -> None:
        if "class" not in sample.labels or (label := int(sample.labels["class"])) < 0:
            return
        reference, candidate = sample.answers[self._output]
        _require_class(label, len(reference), self._output)
        self._accuracy.add(reference, candidate, label)

    def results(self, agreement: Agreement, limits: Limits) -> list[TaskMetric]:
        same, _ = agreement.same_classes()
        return self._accuracy.results(limits.scores) or (
            [agreement_metric("same first class", same > 0, limits.classes)] if same.size else []
        )


class _OfTokens:
    def __init__(self, output: str) -> None:
        self._output = output
        self._f1 = TokenF1()

    def add(self, sample: Sample) -> None:
        if "tags" not in sample.labels:
            return
        reference, candidate = sample.answers[self._output]
        tags = np.asarray(sample.labels["tags"], np.int64)
        counted = tags >= 0 if sample.valid is None else (tags >= 0) & sample.valid
        if not counted.any():
            return
        _require_class(int(tags[counted].max()), reference.shape[1], self._output)
        self._f1.add(_first_classes(reference[counted]), _first_classes(candidate[counted]), tags[counted])

    def results(self, agreement: Agreement, limits: Limits) -> list[TaskMetric]:
        same, tokens = agreement.same_classes()
        return self._f1.results(limits.scores) or (
            [token_agreement_metric("same class of a token", same, tokens, limits.classes)] if same.size else []
        )


class _OfAnswers:
    def __init__(self, start: str, end: str) -> None:
        self._start, self._end = start, end
        self._right = AnswerF1()
        self._same = AnswerF1(("same answer as FP32", "F1 with the answer of FP32"))

    def add(self, sample: Sample) -> None:
        starts, ends = (
            [side if sample.valid is None else np.where(sample.valid, side, _LOWEST) for side in sample.answers[name]]
            for name in (self._start, self._end)
        )
        reference, candidate = (best_span(start, end) for start, end in zip(starts, ends, strict=True))
        self._same.add(reference, candidate, reference)
        if "start" in sample.labels and min(label := (int(sample.labels["start"]), int(sample.labels["end"]))) >= 0:
            self._right.add(reference, candidate, label)

    def results(self, agreement: Agreement, limits: Limits) -> list[TaskMetric]:  # noqa: ARG002 the other measures' own
        return self._right.results(limits.scores) or [of_agreement(m) for m in self._same.results(limits.classes)]


class _OfEmbeddings:
    """Embedding metrics: Spearman's correlation where there are scores, else neighbours.

    `value`: the model outputs the score.
    """

    def __init__(self, output: str, task: Task, *, value: bool) -> None:
        self._output, self._task, self._value = output, task, value
        self._spearman = Spearman()
        self._waiting: tuple[int, float, Sides] | None = None

    def add(self, sample: Sample) -> None:
        if self._task.metric != "spearman" or "score" not in sample.labels:
            return
        score = float(np.asarray(sample.labels["score"], np.float64))
        reference, candidate = sample.answers[self._output]
        if self._value:
            if np.isfinite(score):
                self._spearman.add(_number(reference), _number(candidate), score)
            return
        if reference.ndim == 2:
            counted = slice(None) if sample.valid is None else sample.valid
            reference, candidate = (pooled(side[counted], self._task.pooling) for side in (reference, candidate))
        if np.isfinite(score):
            self._waiting = (sample.place, score, (reference, candidate))
        elif self._waiting is not None and self._waiting[0] == sample.place - 1:
            _, score, first = self._waiting
            self._spearman.add(_cosine(first[0], reference), _cosine(first[1], candidate), score)

    def results(self, agreement: Agreement, limits: Limits) -> list[TaskMetric]:
        if metrics := self._spearman.results(limits.scores):
            return metrics
        same = agreement.same_neighbours()
        return [agreement_metric("same nearest neighbour", same, limits.neighbours)] if same.size else []


def _require_class(label: int, classes: int, output: str) -> None:
    if label >= classes:
        raise UsageError(
            f"data: a label is {label}, and {output} has {classes} classes, counted from 0",
            remedy="see that the labels are the model's own class numbers, or set `metric: none` in `data`",
        )


def _first_classes(scores: Floats) -> NDArray[np.int64]:
    """The index of the highest score of each row; -1 where a score is not finite."""
    return np.where(np.isfinite(scores).all(axis=1), scores.argmax(axis=1), -1).astype(np.int64)


def _cosine(a: Floats, b: Floats) -> float:
    """The cosine of two embeddings; -1 where one is not finite."""
    cosine = cosine_of(float(a @ a), float(b @ b), float(a @ b))
    return cosine if np.isfinite(cosine) else -1.0


def _number(answer: Floats) -> float:
    """A scalar output; the largest float64 where it is not finite, so that it can be ranked."""
    value = float(answer.ravel()[0])
    return value if np.isfinite(value) else float(np.finfo(np.float64).max)


class Evaluator:
    """Evaluator: collects outputs and computes their agreement and metrics.

    Args:
        component: the candidate's inputs and outputs.
        mask_input: the input that is 0 where there is padding; None: nothing is padding.
        task: what is measured, and how vectors of tokens become one.
        precision: the candidate's; decides what the measure may lose (see `comparison.LIMITS`).
        tolerances: what each output is held to.
        max_metric_drop: how much the measure may be below the reference's, where that is not what the precision
            suggests.

    Raises:
        UsageError: no output of the model can be measured so.
    """

    def __init__(
        self,
        component: Component,
        mask_input: str | None,
        *,
        task: Task,
        precision: Precision,
        tolerances: Mapping[str, Tolerance],
        max_metric_drop: float | None = None,
    ) -> None:
        mask = next((t for t in component.inputs if t.name == mask_input), None)
        self._outputs = component.outputs
        self._tolerances = tolerances
        self._limits = LIMITS[precision]
        if max_metric_drop is not None:
            self._limits = self._limits._replace(
                scores=max_metric_drop, classes=max_metric_drop, neighbours=max_metric_drop
            )
        self._padding = Padding(component.inputs, mask_input)
        self._agreements = {t.name: Agreement(t.name, role_of(t, mask, task), task.pooling) for t in component.outputs}
        self._measured = measured_outputs(component.outputs, mask, task)
        self._measure: Measure | None = measure_of(task, self._measured, mask) if self._measured else None
        self._row_count, self._samples = 0, 0

    def add(self, stored: StoredCase, answer: Mapping[str, Array], rows: Sequence[int]) -> None:
        """Add one batch.

        Args:
            stored: the inputs, the reference's answer and the labels.
            answer: the candidate's, to the same inputs.
            rows: places in the data of the batch's samples; what the batch holds beyond them only fills it up.

        Raises:
            UsageError: a label that the model has no class for.
        """
        counted = np.flatnonzero(stored.rows < len(rows))
        row_numbers = stored.rows[counted]
        places = [rows[k] for k in row_numbers]
        sides: dict[str, tuple[Array, Array]] = {}
        for tensor in self._outputs:
            expected, actual = stored.answer[tensor.name], stored_samples(answer[tensor.name], stored)
            valid = self._padding.valid(tensor, stored.feed)
            if expected.shape[:1] != stored.rows.shape:  # one answer for the whole batch
                self._agreements[tensor.name].add(expected[None], actual[None], None, places[:1])
                continue
            if actual.shape == expected.shape:
                actual = actual[counted]
            expected = expected[counted]
            self._agreements[tensor.name].add(expected, actual, None if valid is None else valid[row_numbers], places)
            sides[tensor.name] = (expected, actual)
        if self._measure is not None:
            self._take_measure(self._measure, stored, sides, row_numbers)
        self._row_count += len(rows)
        self._samples += len(row_numbers)

    def evaluation(self, description: str) -> Evaluation:
        """Return the evaluation of all samples so far.

        Args:
            description: where they come from.
        """
        agreements = {name: a.result(self._tolerances[name]) for name, a in self._agreements.items()}
        worst = [sample for a in self._agreements.values() for sample in a.worst(WORST_SAMPLES)]
        metrics = self._measure.results(self._agreements[self._measured[0].name], self._limits) if self._measure else []
        return Evaluation(
            data=description,
            samples=self._samples,
            agreements=tuple(agreements.values()),
            metrics=tuple(metrics),
            worst=tuple(worst),
        )

    def _take_measure(
        self,
        measure: Measure,
        stored: StoredCase,
        sides: Mapping[str, tuple[Array, Array]],
        row_numbers: NDArray[np.int64],
    ) -> None:
        first = self._measured[0]
        valid = self._padding.valid(first, stored.feed)
        for place, k in enumerate(row_numbers):
            answers = {t.name: _answer_pair(*sides[t.name], place) for t in self._measured}
            labels = {name: array[k] for name, array in stored.labels.items()}
            measure.add(Sample(self._row_count + int(k), answers, None if valid is None else valid[k], labels))


def stored_samples(answer: Array, stored: StoredCase) -> Array:
    """Return the samples of a batch's output that the reference kept."""
    batch = len(next(iter(stored.feed.values())))
    return answer[stored.rows] if answer.shape[:1] == (batch,) else answer


def _answer_pair(expected: Array, actual: Array, place: int) -> tuple[Floats, Floats]:
    """The reference's and the candidate's output for one sample; NaN where the candidate's shape differs."""
    reference = expected[place].astype(np.float64)
    return reference, actual[place].astype(np.float64) if actual.shape == expected.shape else np.full_like(
        reference, np.nan
    )
