"""Lowering candidate: a lowered graph that was tried and its results; does not hold the method that made it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from plansmith.compilers import onnx_files
from plansmith.config.engine_options import LoweringRequest
from plansmith.data.reference import StoredCases, read_case
from plansmith.errors import ExportError, GateError, first_line
from plansmith.formatting import count
from plansmith.records.model import BATCH, Case, Component, DataSet, OnnxModel, Precision, SpeedRatio, Trial
from plansmith.records.validation import Evaluation
from plansmith.validation.comparison import Padding
from plansmith.validation.gate import compare_case, tolerances_of
from plansmith.validation.metrics.agreement import Task
from plansmith.validation.metrics.evaluator import Evaluator
from plansmith.validation.onnxruntime_runner import asking

if TYPE_CHECKING:
    import onnx

    from plansmith.records.arrays import Arrays

_SAMPLES = "calibration samples"


@dataclass(frozen=True)
class Verdict:
    """Result of a candidate on the calibration data.

    Args:
        score: mean cosine of its answers.
        worst: the smallest one.
        problem: why it cannot be taken; None if it can.
        feed: gives the inputs that show the problem best; None where usual ones are as good.
        ran: whether it answered at all.
        refusal: what is wrong with the lowered graph, though its answers are accurate enough.
    """

    score: float
    worst: float
    problem: str | None
    feed: Callable[[], Arrays] | None = None
    ran: bool = True
    refusal: ExportError | None = None

    @classmethod
    def of_failure(cls, problem: str) -> Self:
        """Return the result for one that cannot be built or run: the worst possible."""
        return cls(score=-1.0, worst=-1.0, problem=problem, ran=False)


@dataclass(frozen=True)
class MethodFacts:
    """Facts of a lowering method for records, without its graphs; attributes as of `Method`."""

    name: str
    precision: Precision
    settings: Mapping[str, str]
    lowerable: tuple[str, ...]
    high_reasons: Mapping[str, str]
    not_validated: tuple[str, ...]

    @classmethod
    def of(cls, method: Method) -> Self:
        """Return the facts of a method."""
        return cls(
            name=method.name,
            precision=method.precision,
            settings=dict(method.settings),
            lowerable=tuple(method.lowerable),
            high_reasons=dict(method.high_reasons),
            not_validated=tuple(method.not_validated),
        )


@dataclass(frozen=True)
class Candidate:
    """Candidate: a lowered graph that was tried.

    Args:
        method: how it was lowered.
        keep: what stayed high because the search wanted it so, in the order of its finding, with the reason.
        folder: holds the graph as model.onnx; gone once the search needs it no more.
        runnable: a graph of the same numbers that ONNX Runtime runs on a CPU; most often that one itself.
        verdict: of the calibration data.
        file_bytes: of the lowered graph with its weights; 0 where none could be made.
        speed: beside FP32, once it was measured.
    """

    method: MethodFacts
    keep: Mapping[str, str]
    folder: Path
    runnable: Path
    verdict: Verdict
    file_bytes: int
    speed: SpeedRatio | None = None

    @property
    def path(self) -> Path:
        """The path of the lowered graph."""
        return self.folder / onnx_files.MODEL_FILE

    @property
    def passed(self) -> bool:
        """Whether it may be chosen."""
        return self.verdict.problem is None

    @property
    def runs_itself(self) -> bool:
        """Whether ONNX Runtime runs the lowered graph itself and not an equivalent one."""
        return self.runnable == self.path

    @property
    def name(self) -> str:
        """A description with the nodes kept in higher precision."""
        return f"{self.method.name}, {count(len(self.keep), 'more node')} in FP32" if self.keep else self.method.name

    def with_speed(self, speed: SpeedRatio) -> Candidate:
        """Return a copy with the measured speed."""
        return replace(self, speed=speed)

    def trial(self, *, chosen: bool) -> Trial:
        """Return the trial for the record."""
        return Trial(
            name=self.name,
            precision=self.method.precision,
            lowered=len(self.method.lowerable) - len(self.keep),
            kept=len(self.keep) + len(self.method.high_reasons),
            file_bytes=self.file_bytes,
            score=self.verdict.score,
            worst=self.verdict.worst,
            problem=self.verdict.problem,
            speed=self.speed,
            chosen=chosen,
        )


class Method(Protocol):
    """Lowering method: one way to lower one graph, with its calibration measured once.

    Attributes:
        name: in words, such as "INT8, dynamic, per channel".
        precision: what it lowers to.
        settings: what decides its result, for the recipe.
        lowerable: names of the nodes that it lowers when nobody keeps one high, in the graph's order.
        high_reasons: nodes that it leaves high by itself, by name, with the reason.
        not_validated: what cannot be tried on this machine, in words; empty for nothing.
    """

    name: str
    precision: Precision
    settings: Mapping[str, str]
    lowerable: tuple[str, ...]
    high_reasons: Mapping[str, str]
    not_validated: tuple[str, ...]

    def lower(self, keep: Collection[str]) -> onnx.ModelProto:
        """Return a lowered copy of the graph.

        Args:
            keep: names of nodes among `lowerable` that stay high.
        """
        ...

    def runnable(self, lowered: onnx.ModelProto) -> onnx.ModelProto:
        """Return an equivalent graph that ONNX Runtime can run on a CPU; usually the lowered graph itself."""
        ...


@dataclass(frozen=True)
class LoweringTask:
    """Lowering task: the graph, and the data to evaluate it on; the files of `onnx` and `data` are in their folders."""

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
        """The samples that calibration may use."""
        return StoredCases(self.data.calibration.cases, self.data_folder)

    @property
    def middle_feed(self) -> Arrays:
        """The inputs of a batch of typical length or size, as batches start with the shortest samples."""
        cases = sorted(self.data.calibration.cases, key=_elements)
        reached = list(accumulate(case.axes.get(BATCH, 1) for case in cases))
        return self._feed(cases[bisect_left(reached, reached[-1] / 2)])

    @property
    def largest_case(self) -> Case:
        """The batch with the largest samples; every candidate has run on it."""
        return max(self.data.calibration.cases, key=_elements)

    @property
    def usual_feed(self) -> Arrays:
        """The inputs at the usual shape."""
        usual = {axis: sizes.opt for axis, sizes in self.onnx.axes.items()}
        case = next(case for case in self.onnx.reference.cases if case.axes == usual)
        return read_case(case, self.folder).feed

    def _feed(self, case: Case) -> Arrays:
        return read_case(case, self.data_folder).feed


class TrialEvaluator:
    """Trial evaluator: runs a candidate in ONNX Runtime and decides whether it is accurate enough.

    Args:
        task: what is lowered, and how accurate it has to stay.
        precision: of the candidates.
    """

    def __init__(self, task: LoweringTask, precision: Precision) -> None:
        self._task, self._precision = task, precision
        self._tolerances = tolerances_of(task.component.outputs, task.request.tolerances, precision)

    def __call__(self, path: Path) -> Verdict:
        """Evaluate the graph in a file; one that does not run gets the worst result."""
        outputs = self._task.component.outputs
        try:
            with asking(path, outputs, outputs, self._precision, engine=self._task.request.engine) as ask:
                return self._verdict(ask)
        except GateError as error:
            return Verdict.of_failure(first_line(error))

    def _verdict(self, ask: Callable[[Case, Arrays], Arrays]) -> Verdict:
        evaluation, places = self._evaluate(ask)
        score = min(agreement.mean_cosine for agreement in evaluation.agreements)
        worst = min(agreement.min_cosine for agreement in evaluation.agreements)
        if problems := evaluation.failures(_SAMPLES):
            case, place = places[evaluation.worst[0].row] if evaluation.worst else next(iter(places.values()))
            return Verdict(score, worst, problems[0], partial(_read, case, self._task.data_folder, place))
        for case in self._task.onnx.reference.cases:
            if problem := self._problem_at(case, ask):
                return Verdict(score, worst, problem, partial(_read, case, self._task.folder))
        return Verdict(score, worst, None)

    def _evaluate(self, ask: Callable[[Case, Arrays], Arrays]) -> tuple[Evaluation, dict[int, tuple[Case, int]]]:
        """Evaluate the candidate on the samples; also return each sample's location: a case and a row of its batch."""
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
        """The problem at one of the reference's shapes."""
        task = self._task
        stored = read_case(case, task.folder)
        padding = Padding(task.component.inputs, task.onnx.mask_input)
        answer = ask(case, stored.feed)
        for c in compare_case(answer, stored, task.component.outputs, self._tolerances, padding):
            if c.failures:
                return f"output {c.output!r} at {c.case}: {c.failures[0]}"
        return None


def _elements(case: Case) -> int:
    """The number of elements per sample, along the dynamic axes."""
    return math.prod(size for axis, size in case.axes.items() if axis != BATCH)


def _length(feed: Arrays) -> int:
    return len(next(iter(feed.values())))


def _read(case: Case, folder: Path, first: int = 0) -> Arrays:
    """The inputs of a case, rotated so that this sample comes first.

    Only the first rows of a large batch are compared.
    """
    feed = read_case(case, folder).feed
    batch = _length(feed)
    return {name: np.roll(value, -first, axis=0) if len(value) == batch else value for name, value in feed.items()}
