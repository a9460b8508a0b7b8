"""Lowering, in the heavy child: the FP32 graph becomes the one that is asked for, judged on calibration data."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plansmith.compilers import onnx_files
from plansmith.compilers.onnxrt import clean
from plansmith.compilers.precision import speed
from plansmith.compilers.precision.graph import Graph
from plansmith.compilers.precision.lint import accept, lint, refuse
from plansmith.compilers.precision.search import Candidate, Search
from plansmith.durable import link_or_copy
from plansmith.errors import ExportError, GateError
from plansmith.held_out import samples_digest
from plansmith.lowering_options import LoweringRequest
from plansmith.reference import StoredCases, read_case
from plansmith.scratch import scratch_folder
from plansmith.trials import TrialJudge
from plansmith.types import (
    Component,
    DataSet,
    EngineKind,
    KeptNode,
    LayerError,
    LoweredModel,
    OnnxModel,
    Precision,
    Recipe,
)
from plansmith.validation import asking, tolerances_of

if TYPE_CHECKING:
    from plansmith.compilers.precision.method import Method
    from plansmith.reference import Arrays

_LAYER_BATCHES = 1
"""Batches on which graphs are compared node by node: one is enough to rank by."""

_AUTO = (Precision.INT8, Precision.FP16)
"""What `auto` tries beside FP32: ONNX Runtime has no BF16 kernels on a CPU, where speed is measured."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class _Task:
    """What to lower, and what it is judged by; the files of `onnx` and `data` lie in their folders."""

    onnx: OnnxModel
    folder: Path
    data: DataSet
    data_folder: Path
    request: LoweringRequest

    @property
    def calibration(self) -> StoredCases:
        """The samples that may be looked at."""
        return StoredCases(self.data.calibration.cases, self.data_folder)

    @property
    def usual_feed(self) -> Arrays:
        """Inputs at the usual shape."""
        usual = {axis: sizes.opt for axis, sizes in self.onnx.axes.items()}
        case = next(case for case in self.onnx.reference.cases if case.axes == usual)
        return read_case(case, self.folder).feed

    def judge(self, precision: Precision) -> TrialJudge:
        """Of candidates in one precision."""
        component = self.onnx.components["model"]
        return TrialJudge(
            component=component,
            mask_input=self.onnx.mask_input,
            shapes=StoredCases(self.onnx.reference.cases, self.folder),
            calibration=self.calibration,
            data=self.data,
            precision=precision,
            tolerances=tolerances_of(component.outputs, self.request.tolerances, precision),
            max_metric_drop=self.request.max_metric_drop,
        )


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

    Where no recipe within the budget is accurate enough, the record holds no graph .

    Raises:
        ExportError: what came out is not what it should be.
    """
    task = _Task(
        onnx=OnnxModel.model_validate(onnx),
        folder=Path(folder),
        data=DataSet.model_validate(data),
        data_folder=Path(data_folder),
        request=LoweringRequest.model_validate(request),
    )
    # Beside what comes of it: candidates are as large as the model.
    with scratch_folder("lowering", Path(out)) as scratch:
        return _Lowering(task, Path(scratch), progress).run(Path(out)).model_dump(mode="json")


class _Lowering:
    """One graph being lowered."""

    def __init__(self, task: _Task, scratch: Path, progress: Progress) -> None:
        import onnx

        self._task, self._request, self._scratch, self._progress = task, task.request, scratch, progress
        progress("folding constants")
        place = scratch / "clean"
        place.mkdir()
        self._fp32 = place / clean(task.onnx.components["model"], task.folder, place).file
        self._model = onnx.load(self._fp32)
        Graph(self._model)  # gives every node a name
        self._feeds = [stored.feed for stored in islice(task.calibration, _LAYER_BATCHES)]
        self._searches: dict[Precision, Search] = {}

    def run(self, out: Path) -> LoweredModel:
        """Find the recipe and write what it makes."""
        asked = self._request.precision
        wanted = _AUTO if asked == "auto" else (asked,)
        found = self._timed([candidate for precision in wanted for candidate in self._find(precision)])
        if asked == "auto":
            found = [c for c in found if c.speed is not None and c.speed.verdict != "slower"]
        elif not found:
            return self._hopeless(asked)
        if not found:
            return self._unlowered(out)
        return self._write(max(found, key=lambda c: c.speed.ratio if c.speed else 0.0), out)

    def _find(self, precision: Precision) -> list[Candidate]:
        """What is accurate enough in one precision."""
        place = self._scratch / precision
        place.mkdir()
        search = Search(self._model, self._task.judge(precision), self._feeds, place, self._progress)
        self._searches[precision] = search
        self._progress(f"measuring what flows through the graph, for {precision}")
        return search.find(self._methods(precision), self._request.options.budget, all_of_them=self._is_measurable)

    def _methods(self, precision: Precision) -> Sequence[Method]:
        from plansmith.compilers.precision import half, int8_onnxruntime, int8_tensorrt

        given = (self._model, self._task.calibration, self._request.options)
        if precision is Precision.INT8:
            methods = int8_onnxruntime.methods if self._is_measurable else int8_tensorrt.methods
            return methods(*given, mask_input=self._task.onnx.mask_input)
        return half.methods(*given, precision=precision)

    @property
    def _is_measurable(self) -> bool:
        """Whether ONNX Runtime here is what will run the result, so that speed means something."""
        return self._request.engine is EngineKind.ONNXRUNTIME

    def _timed(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """With their speed beside FP32, at the usual shape."""
        if not candidates or not self._is_measurable:
            return list(candidates)
        self._progress("measuring speed beside FP32, in turns")
        files = {str(number): candidate.runnable for number, candidate in enumerate(candidates)}
        ratios = speed.compare({"fp32": self._fp32, **files}, "fp32", self._task.usual_feed)
        measured = [candidate.with_speed(ratios[name]) for name, candidate in zip(files, candidates, strict=True)]
        for search in self._searches.values():
            search.tried = [next((m for m in measured if m.folder == c.folder), c) for c in search.tried]
        return measured

    def _write(self, chosen: Candidate, out: Path) -> LoweredModel:
        """Put the chosen graph into the step's folder and tell how it came about.

        Raises:
            ExportError: the linter finds something wrong, or inputs and outputs are not what they were.
        """
        import onnx

        task, search = self._task, self._searches[chosen.method.precision]
        layers = search.layers(chosen)
        lowered = onnx.load(chosen.folder / onnx_files.MODEL_FILE)
        promised = None if task.request.options.lower_io else task.onnx.components["model"]
        samples = task.calibration if chosen.runs_itself else None
        found = lint(lowered, engine=task.request.engine, samples=samples, promised=promised)
        refuse(accept(found, task.request.options.accept))
        trials = self._trials(chosen)
        runnable = chosen.runnable.relative_to(chosen.folder).as_posix()
        for file in sorted(chosen.folder.iterdir()):
            shutil.move(file, out / file.name)
        component = onnx_files.describe(out / onnx_files.MODEL_FILE)
        self._require_running(out / component.file, component, chosen.method.precision)
        if not task.request.options.lower_io:
            _require_interface(component, task.onnx.components["model"])
        return LoweredModel(
            components={"model": component},
            precision=chosen.method.precision,
            fp32_bytes=sum(file.stat().st_size for file in self._fp32.parent.iterdir()),
            runnable=None if runnable == component.file else runnable,
            recipe=self._recipe(chosen, layers),
            trials=trials,
            layers=tuple(layers),
        )

    def _require_running(self, path: Path, made: Component, precision: Precision) -> None:
        """Run what was written on one batch: a twin was judged, and the graph itself has to run too.

        Raises:
            GateError: it fails, or answers with something else than numbers.
        """
        if precision is Precision.BF16:  # no kernels on a CPU, as `not_validated` says
            return
        case = self._task.data.calibration.cases[0]
        with asking(path, made.outputs, self._task.onnx.components["model"].outputs, precision) as ask:
            answer = ask(case, self._feeds[0])
        broken = [name for name, array in answer.items() if array.dtype.kind == "f" and not np.isfinite(array).all()]
        if broken:
            raise GateError(
                f"the lowered graph answers with NaN or Inf: {', '.join(broken)}",
                remedy="nothing was published; use a higher --precision, and please report this with the log",
            )

    def _unlowered(self, out: Path) -> LoweredModel:
        """FP32, where nothing lower is both accurate enough and not slower."""
        component = self._task.onnx.components["model"]
        for file in component.files:
            link_or_copy(self._task.folder / file, out / file)
        recipe = Recipe(
            precision=Precision.FP32,
            method="FP32: no lower precision is accurate enough without being slower",
            engine=self._request.engine,
            lowered={},
            kept=(),
            settings={},
            calibration=samples_digest(self._task.data.calibration),
            calibration_samples=self._task.data.calibration.count,
            not_validated=(),
        )
        return LoweredModel(
            components={"model": component},
            precision=Precision.FP32,
            recipe=recipe,
            trials=self._trials(None),
            layers=(),
        )

    def _recipe(self, chosen: Candidate, layers: Sequence[LayerError]) -> Recipe:
        method, samples = chosen.method, self._task.data.calibration
        operators = {node.name: node.op_type for node in self._model.graph.node}
        behind = {error.node: error.sqnr_db for error in layers}
        why = dict(method.kept)
        why |= {name: f"brought too much error in (now {behind.get(name, 0):.0f} dB)" for name in chosen.keep}
        lowered = [name for name in method.lowerable if name not in chosen.keep]
        return Recipe(
            precision=method.precision,
            method=method.name,
            engine=self._request.engine,
            lowered=dict(Counter(operators[name] for name in lowered).most_common()),
            kept=tuple(
                KeptNode(node=n.name, op_type=n.op_type, reason=why[n.name])
                for n in self._model.graph.node
                if n.name in why
            ),
            settings=dict(method.settings),
            calibration=samples_digest(samples),
            calibration_samples=samples.count,
            not_validated=tuple(method.not_validated),
        )

    def _trials(self, chosen: Candidate | None) -> tuple[Any, ...]:
        return tuple(
            candidate.trial(chosen=chosen is not None and candidate.folder == chosen.folder)
            for search in self._searches.values()
            for candidate in search.tried
        )

    def _hopeless(self, precision: Precision) -> LoweredModel:
        """No graph at all; what was tried tells why, and the errors of the best of it where to look."""
        search = self._searches[precision]
        best = max(search.tried, key=lambda candidate: candidate.verdict.score, default=None)
        layers = search.layers(best) if best else []
        return LoweredModel(
            components={}, precision=precision, recipe=None, trials=self._trials(None), layers=tuple(layers)
        )


def _require_interface(made: Component, wanted: Component) -> None:
    if (made.inputs, made.outputs) != (wanted.inputs, wanted.outputs):
        raise ExportError(
            "the lowered graph has other inputs or outputs than the exported one",
            remedy="please report this with the log, or use --precision fp32",
        )
