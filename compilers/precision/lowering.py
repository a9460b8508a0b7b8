"""Lowering, in the worker: the FP32 graph becomes the one that is asked for, judged on calibration data."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.compilers.onnxrt import clean
from plansmith.compilers.precision import benchmark
from plansmith.compilers.precision.candidate import Candidate
from plansmith.compilers.precision.graph import Graph
from plansmith.compilers.precision.int8.format import FP8, INT8
from plansmith.compilers.precision.lowered_graph import (
    copy_unlowered,
    recipe_of,
    refuse_mistakes,
    unlowered_recipe,
    write_lowered,
)
from plansmith.compilers.precision.opsets import OLDEST, modern
from plansmith.compilers.precision.requests import LowerRequest
from plansmith.compilers.precision.search import CandidateEvaluators, Search, Subject, best_of
from plansmith.compilers.precision.trials import LoweringTask, TrialEvaluator
from plansmith.errors import ExportError, UsageError
from plansmith.records.model import EngineKind, LoweredModel, Precision, Trial
from plansmith.system.temporary import scratch_folder

if TYPE_CHECKING:
    from plansmith.compilers.precision.candidate import Method

_AUTO = (Precision.INT8, Precision.FP16)
"""What `auto` tries beside FP32: ONNX Runtime has no BF16 kernels on a CPU, where speed is measured."""

_NEAREST = 3

Progress = Callable[[str], None]


def lower(request: LowerRequest, progress: Progress) -> LoweredModel:
    """Lower a graph to a precision, or to the fastest that is accurate enough ("auto"), and write it with its recipe.

    Where no recipe within the budget is accurate enough, the record holds no graph; "auto" then leaves FP32.

    Raises:
        ExportError: nothing can be lowered, or what came out is not what it should be.
        GateError: what came out does not run.
    """
    task = LoweringTask(
        onnx=request.onnx,
        folder=request.folder,
        data=request.data,
        data_folder=request.data_folder,
        request=request.request,
    )
    # Beside what comes of it: candidates are as large as the model.
    with scratch_folder("lowering", request.out) as scratch:
        lowering = _Lowering(task, Path(scratch), progress)
        return lowering.to_fastest(request.out) if task.request.precision == "auto" else lowering.to_asked(request.out)


class _Lowering:
    """One graph being lowered."""

    def __init__(self, task: LoweringTask, scratch: Path, progress: Progress) -> None:
        import onnx

        self._task, self._scratch, self._progress = task, scratch, progress
        progress("folding constants")
        place = scratch / "clean"
        place.mkdir()
        self._fp32 = place / clean(task.component, task.folder, place).file
        oldest = FP8.opset if task.request.precision is Precision.FP8 else OLDEST
        self._model = modern(onnx.load(self._fp32), task.middle_feed, oldest)
        Graph(self._model)  # gives every node a name
        self._searches: dict[Precision, Search] = {}
        self._unfit: list[Trial] = []
        self._race: benchmark.Race | None = None

    def to_asked(self, out: Path) -> LoweredModel:
        """The precision that was asked for; slower than FP32 it may be, as long as it says so."""
        precision = Precision(self._task.request.precision)
        passed = self._timed(self._find(precision))
        return self._written(self._best(passed), out) if passed else self._hopeless(precision)

    def to_fastest(self, out: Path) -> LoweredModel:
        """The fastest that is accurate enough, FP32 among them: lower ones are out where they are surely slower."""
        passed = self._timed([candidate for precision in _AUTO for candidate in self._find_if_any(precision)])
        fast = [candidate for candidate in passed if candidate.speed is None or candidate.speed.verdict != "slower"]
        return self._written(self._best(fast), out) if fast else self._unlowered(passed, out)

    def _find(self, precision: Precision) -> list[Candidate]:
        """What is accurate enough in one precision."""
        self._progress(f"measuring what flows through the graph, for {precision}")
        methods = self._methods(precision)
        place = self._scratch / precision
        place.mkdir()
        subject = Subject(self._model, self._task.middle_feed, self._task.onnx.mask_input)
        judges = CandidateEvaluators(TrialEvaluator(self._task, precision), partial(refuse_mistakes, self._task))
        self._searches[precision] = search = Search(subject, judges, place, self._progress)
        return search.find(methods, self._task.request.options.budget, all_of_them=self._is_measurable)

    def _find_if_any(self, precision: Precision) -> list[Candidate]:
        """The same; a precision that nothing in this graph can have is told of and left out."""
        problem = "every node has to stay FP32"
        try:
            found = self._find(precision)
        except ExportError as error:
            found, problem = [], error.message
        if precision not in self._searches or not self._searches[precision].tried:
            self._unfit.append(
                Trial(
                    name=f"{precision.upper()}, nothing lowered",
                    precision=precision,
                    lowered=0,
                    kept=len(self._model.graph.node),
                    file_bytes=self._fp32_bytes,
                    score=1.0,
                    worst=1.0,
                    problem=problem,
                    speed=None,
                    chosen=False,
                )
            )
        return found

    def _methods(self, precision: Precision) -> Sequence[Method]:
        found = self._made(precision)
        names = {node.name for node in self._model.graph.node}.union(*((*m.lowerable, *m.kept) for m in found))
        _require_matches(self._task.request.options.keep, names)
        return found

    def _made(self, precision: Precision) -> Sequence[Method]:
        from plansmith.compilers.precision.fp16 import method
        from plansmith.compilers.precision.int8 import onnxruntime_methods, tensorrt_method

        given = (self._model, self._task.calibration, self._task.request.options)
        mask_input = self._task.onnx.mask_input
        match precision, self._task.request.engine:
            case Precision.FP16 | Precision.BF16, _:
                return method.methods(*given, precision=precision)
            case Precision.INT8, EngineKind.ONNXRUNTIME:
                return onnxruntime_methods.methods(*given, mask_input=mask_input)
            case Precision.INT8 | Precision.FP8, EngineKind.TENSORRT:
                form = FP8 if precision is Precision.FP8 else INT8
                return tensorrt_method.methods(*given, form=form, mask_input=mask_input)
            case _, engine:
                raise UsageError(f"there is no {precision} for engine {engine}", remedy="use --engine tensorrt")

    @property
    def _is_measurable(self) -> bool:
        """Whether ONNX Runtime on a CPU is what will run the result, so that speed here means something.

        `auto` goes by speed in any case.
        """
        request = self._task.request
        return request.engine is EngineKind.ONNXRUNTIME and (request.device == "cpu" or request.precision == "auto")

    @property
    def _fp32_bytes(self) -> int:
        return sum(file.stat().st_size for file in self._fp32.parent.iterdir())

    def _timed(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """With their speed beside FP32, at the usual shape: that of the graphs themselves, not of their twins."""
        if not candidates or not self._is_measurable:
            return list(candidates)
        self._progress("measuring speed beside FP32, in turns")
        paths = {str(candidate.folder): candidate.path for candidate in candidates}
        self._race = benchmark.compare({"fp32": self._fp32, **paths}, "fp32", self._task.usual_feed)
        ratios = self._race.result
        measured = [candidate.with_speed(ratios[str(candidate.folder)]) for candidate in candidates]
        for candidate in measured:
            self._searches[candidate.method.precision].replace(candidate)
        return measured

    def _best(self, candidates: Sequence[Candidate]) -> Candidate:
        """The first, which is the best guess, unless a later one is surely faster: noise decides nothing."""
        chosen, *others = candidates
        for candidate in others:
            if self._race and self._race.is_faster(str(candidate.folder), str(chosen.folder)):
                chosen = candidate
        return chosen

    def _written(self, chosen: Candidate, out: Path) -> LoweredModel:
        precision = chosen.method.precision
        layers = self._searches[precision].layers(chosen)
        trials = self._trials(chosen)
        component, runnable = write_lowered(self._task, chosen, out)
        operators = {node.name: node.op_type for node in self._model.graph.node}
        return LoweredModel(
            components={"model": component},
            precision=precision,
            fp32_bytes=self._fp32_bytes,
            runnable=runnable,
            recipe=recipe_of(self._task, chosen, operators),
            trials=trials,
            layers=tuple(layers),
        )

    def _unlowered(self, passed: Sequence[Candidate], out: Path) -> LoweredModel:
        """FP32, where nothing lower is both accurate enough and not slower."""
        slow = [f"{c.name} is {c.speed.ratio:.2f} times as fast" for c in passed if c.speed]
        return LoweredModel(
            components={"model": copy_unlowered(self._task, out)},
            precision=Precision.FP32,
            recipe=unlowered_recipe(self._task, slow or ["nothing lower is accurate enough"]),
            trials=self._trials(None),
            layers=(),
        )

    def _hopeless(self, precision: Precision) -> LoweredModel:
        """No graph at all; what was tried tells why, and the errors of the best of it where to look.

        Raises:
            ExportError: there are accurate ones, and all of them have mistakes that an engine would stumble over.
        """
        search = self._searches[precision]
        for candidate in search.tried:
            if candidate.verdict.refusal is not None:
                raise candidate.verdict.refusal
        layers = search.layers(best_of(search.tried)) if search.tried else []
        return LoweredModel(
            components={}, precision=precision, recipe=None, trials=self._trials(None), layers=tuple(layers)
        )

    def _trials(self, chosen: Candidate | None) -> tuple[Trial, ...]:
        tried = [candidate for search in self._searches.values() for candidate in search.tried]
        return (*(candidate.trial(chosen=candidate is chosen) for candidate in tried), *self._unfit)


def _require_matches(patterns: Sequence[str], names: Collection[str]) -> None:
    """See that every pattern of `keep` is some node's name: one with a typing mistake would keep nothing high.

    Raises:
        UsageError: one is not.
    """
    for pattern in patterns:
        if not any(re.fullmatch(pattern, name) for name in names):
            near = get_close_matches(pattern, sorted(names), n=_NEAREST, cutoff=0)
            raise UsageError(
                f"lowering: keep: {pattern!r} matches no node of this graph",
                remedy="it has to match a whole name; the nearest are " + ", ".join(near),
            )
