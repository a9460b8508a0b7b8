"""A candidate's answers beside the reference's over a set of samples, batch by batch and in bounded memory.

The gate uses it on held-out samples, the search for a recipe on those of the calibration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from plansmith.data.reference import StoredCase
from plansmith.records.model import Component, Precision
from plansmith.records.validation import Evaluation, Tolerance
from plansmith.validation.comparison import LIMITS, Padding
from plansmith.validation.metrics.agreement import Agreement
from plansmith.validation.metrics.output_roles import Task, measured_outputs, role_of
from plansmith.validation.metrics.task_inputs import Measure, Sample, measure_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.generic]
    Floats = NDArray[np.float64]

WORST_SAMPLES = 10


class Evaluator:
    """Takes in answers and tells what they are worth.

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
        self._seen, self._samples = 0, 0

    def add(self, stored: StoredCase, answer: Mapping[str, Array], rows: Sequence[int]) -> None:
        """Take in one batch.

        Args:
            stored: the inputs, the reference's answer and the labels.
            answer: the candidate's, to the same inputs.
            rows: places in the data of the batch's samples; what the batch holds beyond them only fills it up.

        Raises:
            UsageError: a label that the model has no class for.
        """
        counted = np.flatnonzero(stored.rows < len(rows))
        kept = stored.rows[counted]
        places = [rows[k] for k in kept]
        sides: dict[str, tuple[Array, Array]] = {}
        for tensor in self._outputs:
            expected, found = stored.answer[tensor.name], stored_samples(answer[tensor.name], stored)
            valid = self._padding.valid(tensor, stored.feed)
            if expected.shape[:1] != stored.rows.shape:  # one answer for the whole batch
                self._agreements[tensor.name].add(expected[None], found[None], None, places[:1])
                continue
            if found.shape == expected.shape:
                found = found[counted]
            expected = expected[counted]
            self._agreements[tensor.name].add(expected, found, None if valid is None else valid[kept], places)
            sides[tensor.name] = (expected, found)
        if self._measure is not None:
            self._take_measure(self._measure, stored, sides, kept)
        self._seen += len(rows)
        self._samples += len(kept)

    def evaluation(self, words: str) -> Evaluation:
        """What all samples so far showed.

        Args:
            words: where they come from.
        """
        agreements = {name: a.result(self._tolerances[name]) for name, a in self._agreements.items()}
        worst = [sample for a in self._agreements.values() for sample in a.worst(WORST_SAMPLES)]
        metrics = self._measure.results(self._agreements[self._measured[0].name], self._limits) if self._measure else []
        return Evaluation(
            data=words,
            samples=self._samples,
            agreements=tuple(agreements.values()),
            metrics=tuple(metrics),
            worst=tuple(worst),
        )

    def _take_measure(
        self, measure: Measure, stored: StoredCase, sides: Mapping[str, tuple[Array, Array]], kept: NDArray[np.int64]
    ) -> None:
        first = self._measured[0]
        valid = self._padding.valid(first, stored.feed)
        for place, k in enumerate(kept):
            answers = {t.name: _both(*sides[t.name], place) for t in self._measured}
            labels = {name: array[k] for name, array in stored.labels.items()}
            measure.add(Sample(self._seen + int(k), answers, None if valid is None else valid[k], labels))


def stored_samples(answer: Array, stored: StoredCase) -> Array:
    """Of an answer to a whole batch, the samples that the reference kept."""
    batch = len(next(iter(stored.feed.values())))
    return answer[stored.rows] if answer.shape[:1] == (batch,) else answer


def _both(expected: Array, found: Array, place: int) -> tuple[Floats, Floats]:
    """Both answers to one sample; NaN for a candidate's of another shape."""
    reference = expected[place].astype(np.float64)
    return reference, found[place].astype(np.float64) if found.shape == expected.shape else np.full_like(
        reference, np.nan
    )
