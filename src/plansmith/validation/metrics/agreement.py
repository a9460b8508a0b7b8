"""Output agreement: error of one output against the reference over many samples, accumulated batch by batch.

Kept are a few numbers a sample and, for embeddings, one vector; never the answers themselves. A sample whose answer
cannot be compared (NaN, Inf, another shape) counts as the reference's opposite: cosine -1 and four times its power
as noise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from plansmith.data.labels import names_vectors
from plansmith.errors import UsageError
from plansmith.records.model import Measured, Pooling, Tensor
from plansmith.records.validation import OutputAgreement, Tolerance, WorstSample
from plansmith.validation.comparison import FEWEST_ELEMENTS, cosine_of, format_shortfall, other_shape, samples_of
from plansmith.validation.verdict import CONSTANT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.generic]
    Floats = NDArray[np.float64]


_SCORES = re.compile(r"logit|prob|score|softmax", re.IGNORECASE)
_SPAN_END = re.compile(r"(^|_)(start|end)(_|$)", re.IGNORECASE)
_OF_EMBEDDINGS = ("spearman", "neighbours")

FIRST = 5
MOST_VECTORS = 8192
"""Of so many samples neighbours are looked for: the first ones."""

_MOST_SQNR_DB = 400.0
_TIE = 1e-6
_NAMED_FAILURES = 3
_AT_ONCE = 1024


class Role(StrEnum):
    """Role: what one output contains."""

    CLASSES = "class scores"
    TAGS = "class scores of tokens"
    POSITIONS = "scores of positions"
    EMBEDDING = "embeddings"
    VALUE = "one value a sample"
    OTHER = "numbers"


@dataclass(frozen=True)
class Task:
    """Evaluation task: the metric, and the pooling of token embeddings into a sentence embedding."""

    metric: Measured = "none"
    pooling: Pooling = "none"


def role_of(output: Tensor, mask: Tensor | None, task: Task) -> Role:
    """Return the role of an output; see the module for the rules."""
    if not output.dtype.startswith(("float", "bfloat")):
        return Role.OTHER
    rank, width = len(output.dims), output.dims[-1] if output.dims else 1
    if rank == 1 or (rank == 2 and width == 1):
        return Role.VALUE
    if rank == 2 and mask is not None and output.dims == mask.dims:
        named = _SPAN_END.search(output.name) is not None
        return Role.POSITIONS if named or task.metric == "answer-f1" else Role.OTHER
    if rank not in (2, 3) or not isinstance(width, int):
        return Role.OTHER
    if _holds_scores(output, task):
        return Role.CLASSES if rank == 2 else Role.TAGS
    return Role.EMBEDDING if rank == 2 or task.pooling != "none" else Role.OTHER


def _holds_scores(output: Tensor, task: Task) -> bool:
    if task.metric == ("accuracy" if len(output.dims) == 2 else "token-f1"):
        return not names_vectors(output.name)
    return _SCORES.search(output.name) is not None and task.metric not in _OF_EMBEDDINGS


def measured_outputs(outputs: Sequence[Tensor], mask: Tensor | None, task: Task) -> tuple[Tensor, ...]:
    """Return the outputs that the task's metric uses: none, one, or the start and end scores of an answer.

    Of several that hold the same, those with "logits" in the name come first, then those that are pooled, then the
    model's order decides.

    Raises:
        UsageError: the model has no such output.
    """
    roles = {
        "none": (),
        "accuracy": (Role.CLASSES,),
        "token-f1": (Role.TAGS,),
        "answer-f1": (Role.POSITIONS,),
        "spearman": (Role.EMBEDDING, Role.VALUE),
        "neighbours": (Role.EMBEDDING,),
    }[task.metric]
    if not roles:
        return ()
    fitting = [o for role in roles for o in outputs if role_of(o, mask, task) is role]
    if task.metric == "answer-f1":
        ends = [[o for o in fitting if word in o.name.lower()] for word in ("start", "end")]
        result = tuple(end[0] for end in ends if end) if all(ends) else tuple(fitting) if len(fitting) == 2 else ()
    else:
        result = tuple(sorted(fitting, key=lambda o: ("logits" not in o.name.lower(), -len(o.dims)))[:1])
    if not result:
        has = ", ".join(f"{o.name} [{', '.join(map(str, o.dims))}]" for o in outputs)
        raise UsageError(
            f"data.metric: {task.metric} is measured on {' or '.join(roles)}, and the model has only {has}",
            remedy="set `metric` in `data` to another measure, or to none",
        )
    return result


class Agreement:
    """Agreement of one output's candidate values with the reference's.

    Args:
        output: its name.
        role: what it holds.
        pooling: how the vectors of a sample's positions become one, for embeddings of three axes.

    Attributes:
        vectors: of embeddings, [samples, width], as they were added: the reference's and the candidate's.
    """

    def __init__(self, output: str, role: Role, pooling: Pooling) -> None:
        self._output, self._role, self._pooling = output, role, pooling
        self._rows: list[int] = []
        self._cosines: list[float] = []
        self._moments, self._together = np.zeros(3), True
        self._signal, self._noise = 0.0, 0.0
        self._kl, self._in_first = 0.0, 0
        self._same_first: list[int] = []
        self._classified: list[int] = []
        self._classes = 0
        self._probabilities: bool | None = None
        self._first_answer: Floats | None = None
        self._varies = False
        self._broken: list[str] = []
        self._vectors: tuple[list[Floats], list[Floats]] = ([], [])

    def add(self, reference: Array, candidate: Array, valid: NDArray[np.bool_] | None, rows: Sequence[int]) -> None:
        """Add one batch.

        Args:
            reference: what the source model answered.
            candidate: what the engine answered.
            valid: which positions count, shaped like the leading axes; None: all.
            rows: places of the batch's samples in the data.
        """
        if reference.shape != candidate.shape:
            why = other_shape(reference, candidate)
            candidate = np.full(reference.shape, np.nan)
        else:
            why = "NaN or Inf in the candidate's answer"
        for row, (r, c) in zip(rows, samples_of(reference, candidate, valid), strict=True):
            expected, actual = r.astype(np.float64), c.astype(np.float64)
            self._rows.append(row)
            whole = False
            if not np.isfinite(expected).all():
                self._broken.append(f"sample {row}: NaN or Inf in the reference's answer")
                expected = np.nan_to_num(expected, posinf=0, neginf=0)
            elif not np.isfinite(actual).all():
                self._broken.append(f"sample {row}: {why}")
            else:
                whole = True
            if r.dtype.kind in "iub":
                self._add_exact(expected, actual if whole else -expected)
            else:
                self._add_sample(expected, actual if whole else -expected, masked=valid is not None, whole=whole)

    def result(self, tolerance: Tolerance) -> OutputAgreement:
        """Return the agreement over all samples, checked against a tolerance."""
        cosines, classified = self._judged_cosines(), sum(self._classified)
        measured = OutputAgreement(
            output=self._output,
            samples=len(self._rows),
            mean_cosine=float(np.mean(cosines)),
            min_cosine=float(np.min(cosines)),
            sqnr_db=self._sqnr_db(),
            kl=self._kl / classified if classified else None,
            same_first=sum(self._same_first) / classified if classified else None,
            first_among_five=self._in_first / classified if classified and self._classes > FIRST else None,
            same_neighbour=float(np.mean(same)) if (same := self.same_neighbours()).size else None,
            failures=(),
        )
        return measured.model_copy(update={"failures": tuple(self._breaches(measured, tolerance))})

    def worst(self, count: int) -> list[WorstSample]:
        """Return the samples with the smallest cosines; none if the outputs per sample are too short for a cosine."""
        if self._together:
            return []
        order = np.argsort(self._cosines, kind="stable")[:count]
        return [WorstSample(row=self._rows[i], output=self._output, cosine=self._cosines[i]) for i in order]

    @property
    def vectors(self) -> tuple[Floats, Floats]:
        """The embeddings of the reference and of the candidate."""
        reference, candidate = (np.array(side) if side else np.zeros((0, 1)) for side in self._vectors)
        return reference, candidate

    def same_classes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return, for each sample with class scores, at how many positions the top class agrees, and of how many."""
        return np.array(self._same_first, np.int64), np.array(self._classified, np.int64)

    def same_neighbours(self) -> NDArray[np.bool_]:
        """Return, for each embedding, whether its nearest neighbour by cosine is the same for the candidate.

        One that is as near by the reference (within 1e-6) is as good, and what is no number has no neighbour; empty
        for fewer than three embeddings.
        """
        reference, candidate = (_unit(side) for side in self.vectors)
        if len(reference) < 3:
            return np.zeros(0, bool)
        same = []
        for start in range(0, len(reference), _AT_ONCE):
            block = slice(start, start + _AT_ONCE)
            near, similarities = reference[block] @ reference.T, candidate[block] @ candidate.T
            places = np.arange(len(near))
            near[places, places + start] = similarities[places, places + start] = -np.inf
            chosen = np.where(np.isnan(similarities), -np.inf, similarities).argmax(axis=1)
            same.append(near[places, chosen] >= near.max(axis=1) - _TIE)
        return np.concatenate(same) & np.isfinite(candidate).all(axis=1)

    def _add_exact(self, expected: Floats, actual: Floats) -> None:
        """Compare indices, counts and flags exactly: each equal element counts as agreement."""
        self._observe(actual.ravel())
        equal = int(np.count_nonzero(expected == actual))
        self._moments += np.array((expected.size, expected.size, equal))
        self._cosines.append(float(np.mean(expected == actual)) if expected.size else 1.0)
        self._signal += float(np.sum(expected**2))
        self._noise += float(np.sum((expected - actual) ** 2))

    def _add_sample(self, expected: Floats, actual: Floats, *, masked: bool, whole: bool) -> None:
        self._signal += float(np.sum(expected**2))
        self._noise += float(np.sum((expected - actual) ** 2))
        if self._role in (Role.CLASSES, Role.TAGS, Role.POSITIONS):
            self._classify(np.atleast_2d(expected), np.atleast_2d(actual))
        if self._role is Role.EMBEDDING and expected.ndim == 2:
            expected, actual = (pooled(side, self._pooling) for side in (expected, actual))
        self._observe(actual.mean(axis=0) if masked and actual.ndim > 1 and actual.size else actual.ravel())
        if self._role is Role.EMBEDDING and len(self._vectors[0]) < MOST_VECTORS:
            self._vectors[0].append(expected)
            self._vectors[1].append(actual if whole else np.full_like(actual, np.nan))
        r, c = expected.ravel(), actual.ravel()
        moments = np.array((r @ r, c @ c, r @ c))
        self._moments += moments
        self._cosines.append(cosine_of(*moments.tolist()) if r.size else 1.0)
        self._together &= r.size < FEWEST_ELEMENTS

    def _classify(self, expected: Floats, actual: Floats) -> None:
        """Add scores, [positions, classes]."""
        if not expected.size:
            return
        if self._probabilities is None:
            self._probabilities = _are_probabilities(expected)
        self._classes = max(self._classes, expected.shape[1])
        p, q = (_log_probabilities(side, self._probabilities) for side in (expected, actual))
        self._kl += float(np.sum(np.exp(p) * (p - q)))
        self._classified.append(len(expected))
        chosen = np.take_along_axis(expected, actual.argmax(axis=1)[:, None], axis=1)[:, 0]
        scale = np.abs(expected).max(axis=1)
        self._same_first.append(int(np.count_nonzero(chosen >= expected.max(axis=1) - _TIE * scale)))
        mine = np.take_along_axis(actual, expected.argmax(axis=1)[:, None], axis=1)
        self._in_first += int(np.count_nonzero((actual > mine).sum(axis=1) < FIRST))

    def _observe(self, answer: Floats) -> None:
        """Track whether the candidate's outputs differ between samples."""
        if self._first_answer is None:
            self._first_answer = answer
        elif answer.shape != self._first_answer.shape:
            self._varies = True
        elif answer.size and not self._varies:
            scale = max(math.sqrt(float(np.mean(answer**2))), math.sqrt(float(np.mean(self._first_answer**2))))
            self._varies = bool(np.abs(answer - self._first_answer).max() > _TIE * scale)

    def _judged_cosines(self) -> list[float]:
        return [cosine_of(*self._moments.tolist())] if self._together else self._cosines

    def _sqnr_db(self) -> float:
        if self._noise == 0.0:
            return _MOST_SQNR_DB
        ratio = self._signal / self._noise
        return max(-_MOST_SQNR_DB, min(_MOST_SQNR_DB, 10 * math.log10(ratio))) if ratio else -_MOST_SQNR_DB

    def _breaches(self, measured: OutputAgreement, tolerance: Tolerance) -> Iterator[str]:
        yield from self._broken[:_NAMED_FAILURES]
        if len(self._broken) > _NAMED_FAILURES:
            yield f"{len(self._broken) - _NAMED_FAILURES} further samples have no answer that can be compared"
        if len(self._rows) > 1 and not self._varies and not self._broken:
            yield CONSTANT
        if measured.mean_cosine < tolerance.min_mean_cosine:
            yield f"mean cosine of the samples is {format_shortfall(measured.mean_cosine, tolerance.min_mean_cosine)}"
        if measured.min_cosine < tolerance.min_cosine:
            yield f"smallest cosine of a sample is {format_shortfall(measured.min_cosine, tolerance.min_cosine)}"


def pooled(vectors: Floats, pooling: Pooling) -> Floats:
    """Return the pooled embedding of a sample's unpadded positions; zeros if there are none."""
    if not len(vectors):
        return np.zeros(vectors.shape[1])
    return np.asarray(vectors[0] if pooling == "first" else vectors.mean(axis=0))


def _unit(vectors: Floats) -> Floats:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float64).tiny))


def _are_probabilities(scores: Floats) -> bool:
    """Whether the reference's scores are probabilities already (after a softmax)."""
    return bool((scores >= 0).all() and np.allclose(scores.sum(axis=1), 1, atol=1e-3))


def _log_probabilities(scores: Floats, probabilities: bool) -> Floats:
    if probabilities:
        return np.asarray(np.log(scores.clip(min=np.finfo(np.float32).tiny)))
    shifted = scores - scores.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
