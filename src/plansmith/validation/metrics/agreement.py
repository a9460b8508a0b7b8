"""How far one output is from the reference over many samples, added up batch by batch.

Kept are a few numbers a sample and, for embeddings, one vector; never the answers themselves. A sample whose answer
cannot be compared (NaN, Inf, another shape) counts as the reference's opposite: cosine -1 and four times its power
as noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from plansmith.records.model import Pooling
from plansmith.records.validation import OutputAgreement, Tolerance, WorstSample
from plansmith.validation.comparison import CONSTANT, FEWEST_ELEMENTS, cosine_of, other_shape, samples_of
from plansmith.validation.metrics.output_roles import Role

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.generic]
    Floats = NDArray[np.float64]

FIRST = 5

MOST_VECTORS = 8192
"""Of so many samples neighbours are looked for: the first ones."""

_MOST_SQNR_DB = 400.0
_TIE = 1e-6
_NAMED_FAILURES = 3
_AT_ONCE = 1024


class Agreement:
    """One output's answers beside the reference's.

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
        self._kept: tuple[list[Floats], list[Floats]] = ([], [])

    def add(self, reference: Array, candidate: Array, valid: NDArray[np.bool_] | None, rows: Sequence[int]) -> None:
        """Take in one batch.

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
            expected, found = r.astype(np.float64), c.astype(np.float64)
            self._rows.append(row)
            whole = False
            if not np.isfinite(expected).all():
                self._broken.append(f"sample {row}: NaN or Inf in the reference's answer")
                expected = np.nan_to_num(expected, posinf=0, neginf=0)
            elif not np.isfinite(found).all():
                self._broken.append(f"sample {row}: {why}")
            else:
                whole = True
            if r.dtype.kind in "iub":
                self._add_exact(expected, found if whole else -expected)
            else:
                self._add_sample(expected, found if whole else -expected, masked=valid is not None, whole=whole)

    def result(self, tolerance: Tolerance) -> OutputAgreement:
        """What the samples showed, held against a tolerance."""
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
        """The samples of the smallest cosines; none where a sample's answer is too short to have one."""
        if self._together:
            return []
        order = np.argsort(self._cosines, kind="stable")[:count]
        return [WorstSample(row=self._rows[i], output=self._output, cosine=self._cosines[i]) for i in order]

    @property
    def vectors(self) -> tuple[Floats, Floats]:
        """The embeddings of the reference and of the candidate."""
        reference, candidate = (np.array(side) if side else np.zeros((0, 1)) for side in self._kept)
        return reference, candidate

    def same_classes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each sample with class scores, how many of its positions have the same first class, and of how many."""
        return np.array(self._same_first, np.int64), np.array(self._classified, np.int64)

    def same_neighbours(self) -> NDArray[np.bool_]:
        """For each embedding, whether its nearest other one, by cosine, is the same to the candidate.

        One that is as near by the reference (within 1e-6) is as good, and what is no number has no neighbour; empty
        for fewer than three embeddings.
        """
        reference, candidate = (_unit(side) for side in self.vectors)
        if len(reference) < 3:
            return np.zeros(0, bool)
        same = []
        for start in range(0, len(reference), _AT_ONCE):
            here = slice(start, start + _AT_ONCE)
            near, found = reference[here] @ reference.T, candidate[here] @ candidate.T
            places = np.arange(len(near))
            near[places, places + start] = found[places, places + start] = -np.inf
            chosen = np.where(np.isnan(found), -np.inf, found).argmax(axis=1)
            same.append(near[places, chosen] >= near.max(axis=1) - _TIE)
        return np.concatenate(same) & np.isfinite(candidate).all(axis=1)

    def _add_exact(self, expected: Floats, found: Floats) -> None:
        """Indices, counts and flags are right or wrong: each element that is equal counts as agreeing."""
        self._observe(found.ravel())
        equal = int(np.count_nonzero(expected == found))
        self._moments += np.array((expected.size, expected.size, equal))
        self._cosines.append(float(np.mean(expected == found)) if expected.size else 1.0)
        self._signal += float(np.sum(expected**2))
        self._noise += float(np.sum((expected - found) ** 2))

    def _add_sample(self, expected: Floats, found: Floats, *, masked: bool, whole: bool) -> None:
        self._signal += float(np.sum(expected**2))
        self._noise += float(np.sum((expected - found) ** 2))
        if self._role in (Role.CLASSES, Role.TAGS, Role.POSITIONS):
            self._classify(np.atleast_2d(expected), np.atleast_2d(found))
        if self._role is Role.EMBEDDING and expected.ndim == 2:
            expected, found = (pooled(side, self._pooling) for side in (expected, found))
        self._observe(found.mean(axis=0) if masked and found.ndim > 1 and found.size else found.ravel())
        if self._role is Role.EMBEDDING and len(self._kept[0]) < MOST_VECTORS:
            self._kept[0].append(expected)
            self._kept[1].append(found if whole else np.full_like(found, np.nan))
        r, c = expected.ravel(), found.ravel()
        moments = np.array((r @ r, c @ c, r @ c))
        self._moments += moments
        self._cosines.append(cosine_of(*moments.tolist()) if r.size else 1.0)
        self._together &= r.size < FEWEST_ELEMENTS

    def _classify(self, expected: Floats, found: Floats) -> None:
        """Take in scores, [positions, classes]."""
        if not expected.size:
            return
        if self._probabilities is None:
            self._probabilities = _are_probabilities(expected)
        self._classes = max(self._classes, expected.shape[1])
        p, q = (_log_probabilities(side, self._probabilities) for side in (expected, found))
        self._kl += float(np.sum(np.exp(p) * (p - q)))
        self._classified.append(len(expected))
        chosen = np.take_along_axis(expected, found.argmax(axis=1)[:, None], axis=1)[:, 0]
        scale = np.abs(expected).max(axis=1)
        self._same_first.append(int(np.count_nonzero(chosen >= expected.max(axis=1) - _TIE * scale)))
        mine = np.take_along_axis(found, expected.argmax(axis=1)[:, None], axis=1)
        self._in_first += int(np.count_nonzero((found > mine).sum(axis=1) < FIRST))

    def _observe(self, answer: Floats) -> None:
        """Look whether the candidate's answers differ between samples."""
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
            yield f"mean cosine of the samples is {measured.mean_cosine:.6f}, allowed {tolerance.min_mean_cosine}"
        if measured.min_cosine < tolerance.min_cosine:
            yield f"smallest cosine of a sample is {measured.min_cosine:.6f}, allowed {tolerance.min_cosine}"


def pooled(vectors: Floats, pooling: Pooling) -> Floats:
    """One vector of a sample's positions, padding left out already; zeros where nothing is left."""
    if not len(vectors):
        return np.zeros(vectors.shape[1])
    return np.asarray(vectors[0] if pooling == "first" else vectors.mean(axis=0))


def _unit(vectors: Floats) -> Floats:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float64).tiny))


def _are_probabilities(scores: Floats) -> bool:
    """Whether the reference's scores went through a softmax already."""
    return bool((scores >= 0).all() and np.allclose(scores.sum(axis=1), 1, atol=1e-3))


def _log_probabilities(scores: Floats, probabilities: bool) -> Floats:
    if probabilities:
        return np.asarray(np.log(scores.clip(min=np.finfo(np.float32).tiny)))
    shifted = scores - scores.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
