"""What the search for a recipe goes by: a candidate at every shape and on the calibration samples, never on others."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from plansmith.compilers.precision.candidate import Verdict
from plansmith.config.precision import LoweringRequest
from plansmith.data.reference import StoredCases, read_case
from plansmith.errors import GateError, first_line
from plansmith.records.model import BATCH, Case, Component, DataSet, OnnxModel, Precision
from plansmith.records.validation import Evaluation
from plansmith.validation.comparison import Padding
from plansmith.validation.gate import compare_case, tolerances_of
from plansmith.validation.metrics.evaluator import Evaluator
from plansmith.validation.metrics.output_roles import Task
from plansmith.validation.onnxruntime_runner import asking

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]

_SAMPLES = "calibration samples"


@dataclass(frozen=True)
class LoweringTask:
    """What to lower, and what it is judged by; the files of `onnx` and `data` lie in their folders."""

    onnx: OnnxModel
    folder: Path
    data: DataSet
    data_folder: Path
    request: LoweringRequest

    @property
    def component(self) -> Component:
        """The exported graph."""
        return self.onnx.components["model"]

    @property
    def calibration(self) -> StoredCases:
        """The samples that may be looked at."""
        return StoredCases(self.data.calibration.cases, self.data_folder)

    @property
    def middle_feed(self) -> Arrays:
        """Inputs of a batch as long, or large, as they mostly are: the batches begin with the shortest samples."""
        cases = sorted(self.data.calibration.cases, key=_elements)
        reached = list(accumulate(case.axes.get(BATCH, 1) for case in cases))
        return self._feed(cases[bisect_left(reached, reached[-1] / 2)])

    @property
    def largest_case(self) -> Case:
        """The batch with the largest samples; every candidate has run on it."""
        return max(self.data.calibration.cases, key=_elements)

    @property
    def usual_feed(self) -> Arrays:
        """Inputs at the usual shape."""
        usual = {axis: sizes.opt for axis, sizes in self.onnx.axes.items()}
        case = next(case for case in self.onnx.reference.cases if case.axes == usual)
        return read_case(case, self.folder).feed

    def _feed(self, case: Case) -> Arrays:
        return read_case(case, self.data_folder).feed


class TrialEvaluator:
    """Runs a candidate in ONNX Runtime and says whether it is accurate enough to go on with.

    Args:
        task: what is lowered, and how accurate it has to stay.
        precision: of the candidates.
    """

    def __init__(self, task: LoweringTask, precision: Precision) -> None:
        self._task, self._precision = task, precision
        self._tolerances = tolerances_of(task.component.outputs, task.request.tolerances, precision)

    def __call__(self, path: Path) -> Verdict:
        """Judge the graph in a file; one that does not run is judged worst."""
        outputs = self._task.component.outputs
        try:
            with asking(path, outputs, outputs, self._precision, engine=self._task.request.engine) as ask:
                return self._verdict(ask)
        except GateError as error:
            return Verdict.of_failure(first_line(error))

    def _verdict(self, ask: Callable[[Case, Arrays], Arrays]) -> Verdict:
        found, places = self._evaluate(ask)
        score = min(agreement.mean_cosine for agreement in found.agreements)
        worst = min(agreement.min_cosine for agreement in found.agreements)
        if problems := found.failures(_SAMPLES):
            case, place = places[found.worst[0].row] if found.worst else next(iter(places.values()))
            return Verdict(score, worst, problems[0], partial(_read, case, self._task.data_folder, place))
        for case in self._task.onnx.reference.cases:
            if problem := self._problem_at(case, ask):
                return Verdict(score, worst, problem, partial(_read, case, self._task.folder))
        return Verdict(score, worst, None)

    def _evaluate(self, ask: Callable[[Case, Arrays], Arrays]) -> tuple[Evaluation, dict[int, tuple[Case, int]]]:
        """What the samples show, and where each one lies: by its place in the data, a case and a place in its batch."""
        task = self._task
        judge = Evaluator(
            task.component,
            task.onnx.mask_input,
            task=Task(metric=task.data.metric, pooling=task.data.pooling),
            precision=self._precision,
            tolerances=self._tolerances,
            max_metric_drop=task.request.max_metric_drop,
        )
        rows, places = list(task.data.calibration.rows), dict[int, tuple[Case, int]]()
        for case in task.data.calibration.cases:
            stored = read_case(case, task.data_folder)
            batch, rows = rows[: _length(stored.feed)], rows[_length(stored.feed) :]
            judge.add(stored, ask(case, stored.feed), batch)
            places = {row: (case, place) for place, row in enumerate(batch)} | places
        return judge.evaluation(_SAMPLES), places

    def _problem_at(self, case: Case, ask: Callable[[Case, Arrays], Arrays]) -> str | None:
        """What is wrong at one of the reference's shapes."""
        task = self._task
        stored = read_case(case, task.folder)
        padding = Padding(task.component.inputs, task.onnx.mask_input)
        answer = ask(case, stored.feed)
        for c in compare_case(answer, stored, task.component.outputs, self._tolerances, padding):
            if c.failures:
                return f"output {c.output!r} at {c.case}: {c.failures[0]}"
        return None


def _elements(case: Case) -> int:
    """Of one sample, as far as the sizes that vary say."""
    return math.prod(size for axis, size in case.axes.items() if axis != BATCH)


def _length(feed: Arrays) -> int:
    return len(next(iter(feed.values())))


def _read(case: Case, folder: Path, first: int = 0) -> Arrays:
    """The inputs of a case, turned so that this sample is the first one: only some of a large batch are looked at."""
    feed = read_case(case, folder).feed
    batch = _length(feed)
    return {name: np.roll(value, -first, axis=0) if len(value) == batch else value for name, value in feed.items()}
