"""Lowering, in the heavy child: the FP32 graph becomes the one that is asked for, judged on calibration data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.compilers.onnxrt import clean
from plansmith.compilers.precision import speed
from plansmith.compilers.precision.graph import Graph
from plansmith.compilers.precision.opsets import modern
from plansmith.compilers.precision.search import Candidate, Search
from plansmith.errors import ExportError
from plansmith.lowered_graph import copy_unlowered, recipe_of, unlowered_recipe, write_lowered
from plansmith.lowering_options import LoweringRequest
from plansmith.scratch import scratch_folder
from plansmith.trials import LoweringTask, TrialJudge
from plansmith.types import DataSet, EngineKind, LoweredModel, OnnxModel, Precision, Trial

if TYPE_CHECKING:
    from plansmith.compilers.precision.method import Method

_AUTO = (Precision.INT8, Precision.FP16)
"""What `auto` tries beside FP32: ONNX Runtime has no BF16 kernels on a CPU, where speed is measured."""

Progress = Callable[[str], None]


def lower(
    *,
    onnx: Mapping[str, Any],
    folder: str,
    data: Mapping[str, Any],
    data_folder: str,
    request: Mapping[str, Any],
    out: str,
    progress: Progress,
) -> dict[str, Any]:
    """Lower a graph to a precision, or to the fastest that is accurate enough ("auto"), and write it with its recipe.

    Where no recipe within the budget is accurate enough, the record holds no graph; "auto" then leaves FP32.

    Raises:
        ExportError: nothing can be lowered, or what came out is not what it should be.
        GateError: what came out does not run.
    """
    task = LoweringTask(
        onnx=OnnxModel.model_validate(onnx),
        folder=Path(folder),
        data=DataSet.model_validate(data),
        data_folder=Path(data_folder),
        request=LoweringRequest.model_validate(request),
    )
    # Beside what comes of it: candidates are as large as the model.
    with scratch_folder("lowering", Path(out)) as scratch:
        lowering = _Lowering(task, Path(scratch), progress)
        made = lowering.to_fastest(Path(out)) if task.request.precision == "auto" else lowering.to_asked(Path(out))
        return made.model_dump(mode="json")


class _Lowering:
    """One graph being lowered."""

    def __init__(self, task: LoweringTask, scratch: Path, progress: Progress) -> None:
        import onnx

        self._task, self._scratch, self._progress = task, scratch, progress
        progress("folding constants")
        place = scratch / "clean"
        place.mkdir()
        self._fp32 = place / clean(task.component, task.folder, place).file
        self._model = modern(onnx.load(self._fp32), task.first_feed)
        Graph(self._model)  # gives every node a name
        self._searches: dict[Precision, Search] = {}
        self._unfit: list[Trial] = []

    def to_asked(self, out: Path) -> LoweredModel:
        """The precision that was asked for; slower than FP32 it may be, as long as it says so."""
        precision = Precision(self._task.request.precision)
        passed = self._timed(self._find(precision))
        return self._written(_fastest(passed), out) if passed else self._hopeless(precision)

    def to_fastest(self, out: Path) -> LoweredModel:
        """The fastest that is accurate enough, FP32 among them: lower ones are out where they are surely slower."""
        passed = self._timed([candidate for precision in _AUTO for candidate in self._find_if_any(precision)])
        fast = [candidate for candidate in passed if candidate.speed is None or candidate.speed.verdict != "slower"]
        return self._written(_fastest(fast), out) if fast else self._unlowered(passed, out)

    def _find(self, precision: Precision) -> list[Candidate]:
        """What is accurate enough in one precision."""
        self._progress(f"measuring what flows through the graph, for {precision}")
        methods = self._methods(precision)
        place = self._scratch / precision
        place.mkdir()
        search = Search(self._model, TrialJudge(self._task, precision), self._task.first_feed, place, self._progress)
        self._searches[precision] = search
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
        from plansmith.compilers.precision import half, int8_onnxruntime, int8_tensorrt

        given = (self._model, self._task.calibration, self._task.request.options)
        if precision is Precision.INT8:
            on_cpu = self._task.request.engine is EngineKind.ONNXRUNTIME
            methods = int8_onnxruntime.methods if on_cpu else int8_tensorrt.methods
            return methods(*given, mask_input=self._task.onnx.mask_input)
        return half.methods(*given, precision=precision)

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
        paths = {str(number): candidate.path for number, candidate in enumerate(candidates)}
        ratios = speed.compare({"fp32": self._fp32, **paths}, "fp32", self._task.usual_feed)
        measured = [candidate.with_speed(ratios[name]) for name, candidate in zip(paths, candidates, strict=True)]
        for candidate in measured:
            self._searches[candidate.method.precision].replace(candidate)
        return measured

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
        """No graph at all; what was tried tells why, and the errors of the best of it where to look."""
        search = self._searches[precision]
        best = max(search.tried, key=lambda candidate: candidate.verdict.score, default=None)
        layers = search.layers(best) if best else []
        return LoweredModel(
            components={}, precision=precision, recipe=None, trials=self._trials(None), layers=tuple(layers)
        )

    def _trials(self, chosen: Candidate | None) -> tuple[Trial, ...]:
        tried = [candidate for search in self._searches.values() for candidate in search.tried]
        return (*(candidate.trial(chosen=candidate is chosen) for candidate in tried), *self._unfit)


def _fastest(candidates: Sequence[Candidate]) -> Candidate:
    """The first one where speed was not measured."""
    return max(candidates, key=lambda candidate: candidate.speed.ratio if candidate.speed else 0.0)
