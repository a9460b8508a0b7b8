"""Which answers and labels the task's measure compares, sample by sample.

Labels, by name: `class`, one a sample; `tags`, one a token; `start` and `end`, the first and last place of an answer;
`score`, one a sample, or one for the first of two samples that belong together and NaN for the second. Whole numbers
below 0 (-100 in most data sets) are no label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from plansmith.errors import UsageError
from plansmith.records.model import Tensor
from plansmith.records.validation import TaskMetric
from plansmith.validation.comparison import Limits, cosine_of
from plansmith.validation.metrics.agreement import Agreement, pooled
from plansmith.validation.metrics.output_roles import Role, Task, role_of
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


@dataclass(frozen=True)
class Sample:
    """One sample: both answers, output by output, which of its positions count (None: all), its labels, its place."""

    place: int
    answers: Mapping[str, Sides]
    valid: NDArray[np.bool_] | None
    labels: Mapping[str, Array]


class Measure(Protocol):
    """One measure of a task."""

    def add(self, sample: Sample) -> None:
        """Take in one sample, in the data's order."""
        ...

    def results(self, agreement: Agreement, limits: Limits) -> list[TaskMetric]:
        """What was measured, and whether it is within the limits; empty where no sample could be measured.

        Args:
            agreement: of the (first) output that the measure reads.
            limits: what may be lost.
        """
        ...


def measure_of(task: Task, outputs: Sequence[Tensor], mask: Tensor | None) -> Measure:
    """The measure of a task; `outputs` are those that `output_roles.measured_outputs` named."""
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
    """Spearman's correlation where there are scores, else neighbours; `value`: the model itself gives the score."""

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
        if found := self._spearman.results(limits.scores):
            return found
        same = agreement.same_neighbours()
        return [agreement_metric("same nearest neighbour", same, limits.neighbours)] if same.size else []


def _require_class(label: int, classes: int, output: str) -> None:
    if label >= classes:
        raise UsageError(
            f"data: a label is {label}, and {output} has {classes} classes, counted from 0",
            remedy="see that the labels are the model's own class numbers, or set `metric: none` in `data`",
        )


def _first_classes(scores: Floats) -> NDArray[np.int64]:
    """The class of the highest score of each row; -1 where a score is no number."""
    return np.where(np.isfinite(scores).all(axis=1), scores.argmax(axis=1), -1).astype(np.int64)


def _cosine(a: Floats, b: Floats) -> float:
    """Of two embeddings; -1 where one holds what is no number."""
    found = cosine_of(float(a @ a), float(b @ b), float(a @ b))
    return found if np.isfinite(found) else -1.0


def _number(answer: Floats) -> float:
    """One value; a huge one where it is none, so that it has a rank."""
    value = float(answer.ravel()[0])
    return value if np.isfinite(value) else float(np.finfo(np.float64).max)
