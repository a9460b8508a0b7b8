"""Lowering in the worker: turns the FP32 graph into the requested precision and evaluates it on calibration data."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from plansmith.compilers import onnx_files
from plansmith.compilers.onnxrt import clean
from plansmith.compilers.precision import benchmark
from plansmith.compilers.precision.candidate import Candidate, LoweringTask, TrialEvaluator
from plansmith.compilers.precision.graph import Graph
from plansmith.compilers.precision.int8.format import FP8, INT8
from plansmith.compilers.precision.lint.linter import Finding, accept, lint, refuse
from plansmith.compilers.precision.opsets import OLDEST, modern
from plansmith.compilers.precision.requests import LintWarnings, LowerRequest, PrelowerCheckRequest
from plansmith.compilers.precision.search import CandidateEvaluators, Search, Subject, best_of
from plansmith.data.reference import StoredCases, read_case
from plansmith.errors import ExportError, GateError, UsageError
from plansmith.records.model import Component, EngineKind, HighPrecisionNode, LoweredModel, Precision, Recipe, Trial
from plansmith.system.files import link_or_copy, scratch_folder
from plansmith.system.memory import give_back
from plansmith.system.tasks import Progress
from plansmith.validation.comparison import Padding
from plansmith.validation.onnxruntime_runner import asking
from plansmith.validation.verdict import samples_digest

if TYPE_CHECKING:
    import onnx

    from plansmith.compilers.precision.candidate import Method

_AUTO = (Precision.INT8, Precision.FP16)
"""What `auto` tries beside FP32: ONNX Runtime has no BF16 kernels on a CPU, where speed is measured."""

_NEAREST = 3


def refuse_mistakes(task: LoweringTask, lowered: onnx.ModelProto, runs_itself: bool) -> None:
    """Refuse a lowered graph with lint errors, except those that the user accepts.

    Args:
        task: what is lowered, and for which engine.
        lowered: the graph.
        runs_itself: ONNX Runtime can run it, so that it can be asked whether its scales fit the data.

    Raises:
        ExportError: there are errors.
    """
    findings = lint(
        lowered,
        engine=task.request.engine,
        samples=task.calibration if runs_itself else None,
        promised=None if task.request.options.lower_io else task.component,
        mask_input=task.onnx.mask_input,
    )
    refuse(accept(findings, task.request.options.accept))


def write_lowered(task: LoweringTask, chosen: Candidate, out: Path) -> tuple[Component, str | None]:
    """Write the chosen graph to a folder, and check it.

    Returns:
        The graph, and the file of its twin where ONNX Runtime cannot run the graph itself.

    Raises:
        ExportError: inputs and outputs are not what they were.
        GateError: the graph fails, or answers with something else than numbers.
    """
    promised = None if task.request.options.lower_io else task.component
    for file in sorted(chosen.folder.iterdir()):
        shutil.move(file, out / file.name)
    actual = onnx_files.describe(out / onnx_files.MODEL_FILE)
    if promised is not None and (actual.inputs, actual.outputs) != (promised.inputs, promised.outputs):
        raise ExportError(
            "the lowered graph has other inputs or outputs than the exported one",
            remedy="please report this with the log, or use --precision fp32",
        )
    _require_running(task, out, actual, chosen.method.precision)
    return actual, None if chosen.runs_itself else chosen.runnable.relative_to(chosen.folder).as_posix()


def copy_unlowered(task: LoweringTask, out: Path) -> Component:
    """Copy the exported graph to a folder."""
    for file in task.component.files:
        link_or_copy(task.folder / file, out / file)
    return task.component


def recipe_of(task: LoweringTask, chosen: Candidate, operators: Mapping[str, str]) -> Recipe:
    """Return the recipe of a lowered graph.

    Args:
        task: names the engine and the samples.
        chosen: the graph.
        operators: the FP32 graph's, by the name of the node and in its order.
    """
    method = chosen.method
    reasons = {**method.high_reasons, **chosen.keep}
    lowered = Counter(operators[name] for name in method.lowerable if name not in chosen.keep)
    return Recipe(
        precision=method.precision,
        method=method.name,
        engine=task.request.engine,
        lowered=dict(lowered.most_common()),
        kept=tuple(
            HighPrecisionNode(node=name, op_type=operator, reason=reasons[name])
            for name, operator in operators.items()
            if name in reasons
        ),
        settings=dict(method.settings),
        calibration=samples_digest(task.data.calibration),
        calibration_samples=task.data.calibration.count,
        not_validated=tuple(method.not_validated),
    )


def unlowered_recipe(task: LoweringTask, why: Sequence[str]) -> Recipe:
    """Return the recipe that nothing was lowered, and why."""
    return Recipe(
        precision=Precision.FP32,
        method="FP32: " + "; ".join(why),
        engine=task.request.engine,
        lowered={},
        kept=(),
        settings={},
        calibration=samples_digest(task.data.calibration),
        calibration_samples=task.data.calibration.count,
        not_validated=(),
    )


def _require_running(task: LoweringTask, folder: Path, actual: Component, precision: Precision) -> None:
    """Run the written graph on the largest batch: its twin was compared, and the graph itself must run too.

    Raises:
        GateError: it fails, or answers with something else than numbers.
    """
    if precision is Precision.BF16:  # no kernels on a CPU, as `not_validated` says
        return
    case = task.largest_case
    feed = read_case(case, task.data_folder).feed
    with asking(
        folder / actual.file, actual.outputs, task.component.outputs, precision, engine=task.request.engine
    ) as ask:
        answer = ask(case, feed)
    padding = Padding(actual.inputs, task.onnx.mask_input)
    broken = []
    for tensor in actual.outputs:
        array, valid = answer[tensor.name], padding.valid(tensor, feed)
        if array.dtype.kind == "f" and not np.isfinite(array if valid is None else array[valid]).all():
            broken.append(tensor.name)
    if broken:
        raise GateError(
            f"the lowered graph answers with NaN or Inf: {', '.join(broken)}",
            remedy="nothing was published; use a higher --precision, and please report this with the log",
        )


def check_prelowered(request: PrelowerCheckRequest, progress: Callable[[str], None]) -> LintWarnings:
    """Lint a graph that its author lowered: being its own reference, it would pass the accuracy gate with mistakes.

    Raises:
        ExportError: the graph has errors.
    """
    import onnx

    model, data = request.onnx, request.data
    component = model.components["model"]
    is_real = data is not None and data.real
    progress("looking for mistakes in the lowered graph")
    findings = lint(
        onnx.load(request.folder / component.file),
        engine=request.engine,
        samples=StoredCases(data.calibration.cases, request.data_folder) if data is not None and is_real else None,
        promised=component,
        mask_input=model.mask_input,
    )
    findings = accept(findings, request.accepted)
    refuse(findings, subject=f"the file, which is {model.precision} already,")
    return LintWarnings(warnings=tuple(_line(finding) for finding in findings))


def _line(finding: Finding) -> str:
    return f"{' '.join(filter(None, (finding.node, finding.message)))} [{finding.id}]"


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
    give_back()  # the export has left more than a candidate takes
    # Beside what comes of it: candidates are as large as the model.
    with scratch_folder("lowering", request.out) as scratch:
        lowering = _Lowering(task, Path(scratch), progress)
        return lowering.to_fastest(request.out) if task.request.precision == "auto" else lowering.to_asked(request.out)


class _Lowering:
    """The lowering of one graph."""

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
        """Lower to the requested precision; it may be slower than FP32, which is then reported."""
        precision = Precision(self._task.request.precision)
        passed = self._timed(self._find(precision))
        return self._written(self._best(passed), out) if passed else self._hopeless(precision)

    def to_fastest(self, out: Path) -> LoweredModel:
        """Lower to the fastest precision that is accurate enough, FP32 included; surely slower ones are excluded."""
        passed = self._timed([candidate for precision in _AUTO for candidate in self._find_if_any(precision)])
        fast = [candidate for candidate in passed if candidate.speed is None or candidate.speed.verdict != "slower"]
        return self._written(self._best(fast), out) if fast else self._unlowered(passed, out)

    def _find(self, precision: Precision) -> list[Candidate]:
        """Find the candidates in one precision that are accurate enough."""
        self._progress(f"measuring what flows through the graph, for {precision}")
        methods = self._methods(precision)
        place = self._scratch / precision
        place.mkdir()
        subject = Subject(self._model, self._task.middle_feed, self._task.onnx.mask_input)
        judges = CandidateEvaluators(TrialEvaluator(self._task, precision), partial(refuse_mistakes, self._task))
        self._searches[precision] = search = Search(subject, judges, place, self._progress)
        return search.find(methods, self._task.request.options.budget, all_of_them=self._is_measurable)

    def _find_if_any(self, precision: Precision) -> list[Candidate]:
        """Like `_find`; a precision that no node of this graph can have is reported and skipped."""
        problem = "every node has to stay FP32"
        try:
            candidates = self._find(precision)
        except ExportError as error:
            candidates, problem = [], error.message
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
        return candidates

    def _methods(self, precision: Precision) -> Sequence[Method]:
        methods = self._make_methods(precision)
        names = {node.name for node in self._model.graph.node}.union(
            *((*m.lowerable, *m.high_reasons) for m in methods)
        )
        _require_matches(self._task.request.options.keep, names)
        return methods

    def _make_methods(self, precision: Precision) -> Sequence[Method]:
        from plansmith.compilers.precision.fp16 import method
        from plansmith.compilers.precision.int8 import onnxruntime_methods, tensorrt_method

        arguments = (self._model, self._task.calibration, self._task.request.options)
        mask_input = self._task.onnx.mask_input
        match precision, self._task.request.engine:
            case Precision.FP16 | Precision.BF16, _:
                return method.methods(*arguments, precision=precision)
            case Precision.INT8, EngineKind.ONNXRUNTIME:
                return onnxruntime_methods.methods(*arguments, mask_input=mask_input)
            case Precision.INT8 | Precision.FP8, EngineKind.TENSORRT:
                form = FP8 if precision is Precision.FP8 else INT8
                return tensorrt_method.methods(*arguments, form=form, mask_input=mask_input)
            case _, engine:
                raise UsageError(f"there is no {precision} for engine {engine}", remedy="use --engine tensorrt")

    @property
    def _is_measurable(self) -> bool:
        """Whether ONNX Runtime on a CPU will run the result, so that measuring speed here is meaningful.

        `auto` goes by speed in any case.
        """
        request = self._task.request
        return request.engine is EngineKind.ONNXRUNTIME and (request.device == "cpu" or request.precision == "auto")

    @property
    def _fp32_bytes(self) -> int:
        return sum(file.stat().st_size for file in self._fp32.parent.iterdir())

    def _timed(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Measure the candidates' speed relative to FP32 at the usual shape, without twins."""
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
        """The first candidate, which is the best guess, unless a later one is significantly faster."""
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
        """The FP32 model, as nothing lower is both accurate enough and not slower."""
        slow = [f"{c.name} is {c.speed.ratio:.2f} times as fast" for c in passed if c.speed]
        return LoweredModel(
            components={"model": copy_unlowered(self._task, out)},
            precision=Precision.FP32,
            recipe=unlowered_recipe(self._task, slow or ["nothing lower is accurate enough"]),
            trials=self._trials(None),
            layers=(),
        )

    def _hopeless(self, precision: Precision) -> LoweredModel:
        """A result without a graph; the attempts give the reason, and the best one's errors show where to look.

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
    """Require that every pattern of `keep` matches a node: a mistyped one would keep nothing high.

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
