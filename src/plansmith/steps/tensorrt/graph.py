"""GPU-free preparation of a plan's graph: made ready, linted, and test-built by another library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from plansmith.compilers.precision.requests import LintPlanRequest, LintWarnings
from plansmith.compilers.trt.profiles import profiles_of
from plansmith.compilers.trt.rtx import nearest_of
from plansmith.compilers.trt.rtx_check import check_build
from plansmith.compilers.trt.rules import require_formats
from plansmith.config.engine_options import TensorRTOptions
from plansmith.config.spec import ModelSpec
from plansmith.config.targets import Target
from plansmith.errors import EngineError, ExportError
from plansmith.records.engine import BuildCheck, BuildSpec, CheckRequest, Gpu
from plansmith.records.model import Component, HighPrecisionNode, LoweredModel, OnnxModel
from plansmith.report.text import describe_check
from plansmith.steps.cache.local import CacheEntry
from plansmith.steps.runner import StageRunner, StepResult
from plansmith.steps.worker import tasks
from plansmith.steps.worker.tasks import PlanGraphRequest, PreparedGraph

_SECONDS_PER_MINUTE = 60
_CHECK_MINUTES = 10
"""A check takes no longer than this, whatever a build on a GPU may take."""

# What decides whether there can be a plan. The other flags are about speed, or about a runtime that is not here.
_CHECKED_FLAGS = ("formats", "profiles", "tf32")


@dataclass(frozen=True)
class PlanGraph:
    """A graph prepared for TensorRT, with the build settings of its plan.

    Attributes:
        entry: the graph, in the cache.
        build: profiles and flags.
        cached: nothing had to be done.
        check: None where none was asked for.
        check_folder: where its files lie; None where the library could say nothing.
    """

    entry: CacheEntry
    build: BuildSpec
    cached: bool
    check: BuildCheck | None = None
    check_folder: Path | None = None

    @property
    def layers_file(self) -> Path | None:
        """JSON file with all layers of the engine that the check built; None if not available."""
        if self.check is None or self.check_folder is None or not self.check.layers_file:
            return None
        return self.check_folder / self.check.layers_file

    @property
    def file(self) -> Path:
        """The ONNX file; its external weights are in the same folder."""
        return self.entry.folder / self.component.file

    @property
    def prepared(self) -> PreparedGraph:
        """The record of the prepared graph."""
        return PreparedGraph.model_validate(self.entry.record)

    @property
    def component(self) -> Component:
        """The component record of the graph."""
        return self.prepared.component

    @property
    def in_fp32(self) -> tuple[HighPrecisionNode, ...]:
        """The nodes that compute in FP32 on purpose."""
        return self.prepared.in_fp32


class _Unknown(Exception):
    """Inconclusive check: on another machine, or with more time, it may succeed, so it is not cached."""

    def __init__(self, check: BuildCheck) -> None:
        super().__init__(check.reason)
        self.check = check


class GraphSteps:
    """Graph steps: prepare the graphs of one compile for TensorRT.

    Args:
        stages: the compile's steps.
        spec: what is wanted.
        target: the runtime that will serve the plan.
        options: of the spec, with absolute paths.
    """

    def __init__(self, stages: StageRunner, spec: ModelSpec, target: Target, options: TensorRTOptions) -> None:
        self._stages = stages
        self._accepted = spec.lowering.accept
        self._target = target
        self._options = options

    def prepare(self, onnx: OnnxModel, lowered: StepResult[LoweredModel], kinds: Sequence[Gpu]) -> PlanGraph | None:
        """Prepare a graph, and refuse what TensorRT would refuse before a GPU is occupied.

        None where it only looks, and something of that has to be done.

        Args:
            onnx: the exported graph.
            lowered: what becomes the plan.
            kinds: of GPU that the plan is for, as far as they are known.

        Raises:
            ExportError: TensorRT's parser does not read the graph.
            UsageError: profiles that the graph cannot have.
            EngineError: formats that its inputs and outputs cannot have; or the check refuses the graph.
            EnvironmentFault: there is not enough memory for a check, or its library does not load.
        """
        component, record = lowered.record.components["model"], lowered.record
        ready = self._ready(lowered)
        if ready is None:
            return None
        entry, cached = ready
        profiles = profiles_of(self._options, component.inputs, onnx.axes, entry.record["shape_inputs"])
        prepared = PlanGraph(entry, self._options.build_spec(profiles), cached)
        require_formats(prepared.build.formats, (*component.inputs, *component.outputs))
        graph: PlanGraph | None = prepared
        if self._options.check_build:
            try:
                graph = self._checked(prepared, record, kinds)
            except EngineError as error:
                raise self._with_lint(error, prepared, record) from error
        warnings = self._lint(graph, record) if graph is not None else None
        if graph is None or warnings is None:
            return None
        for warning in warnings:
            self._stages.notice(warning)
        if graph.check is not None and graph.check.verdict == "unknown":
            self._stages.notice(describe_check(graph.check))
        return graph

    def _ready(self, lowered: StepResult[LoweredModel]) -> tuple[CacheEntry, bool] | None:
        """Return the graph as passed to TensorRT, and its shape inputs."""

        def prepare(out: Path) -> PreparedGraph:
            request = PlanGraphRequest(lowered=lowered.record, folder=lowered.folder, out=out)
            return self._stages.run_in_worker(tasks.PLAN_GRAPH, request)

        return self._stages.entry("compile", [lowered.digest], {"of": "graph"}, prepare, tools="plan_graph")

    def _lint(self, graph: PlanGraph, lowered: LoweredModel) -> tuple[str, ...] | None:
        """Refuse what TensorRT's parser would reject or misread; return warnings on what it might."""
        request = LintPlanRequest(
            lowered=lowered.model_copy(update={"components": {"model": graph.component}}),
            folder=graph.entry.folder,
            profiles=graph.build.profiles,
            tensorrt=str(self._target.tensorrt),
            plugins=bool(graph.build.plugins),
            accepted=self._accepted,
            built=graph.check is not None and graph.check.verdict == "built",
        )

        def look(_: Path) -> LintWarnings:
            return self._stages.run_in_worker(tasks.LINT_PLAN, request)

        inputs, parameters = [graph.entry.digest], request.model_dump(mode="json", exclude={"lowered", "folder"})
        result = self._stages.entry("compile", inputs, {"of": "lint", **parameters}, look, tools="plan_lint")
        return None if result is None else LintWarnings.model_validate(result[0].record).warnings

    def _with_lint(self, refusal: EngineError, graph: PlanGraph, lowered: LoweredModel) -> EngineError:
        """Return an error with the lint findings for the same graph, which would be refused without the check, too."""
        try:
            self._lint(graph, lowered)
        except ExportError as lint_error:
            return EngineError(f"{refusal.message}\n{lint_error.message}", remedy=lint_error.remedy, log=refusal.log)
        return refusal

    def _checked(self, graph: PlanGraph, lowered: LoweredModel, kinds: Sequence[Gpu]) -> PlanGraph | None:
        """Parse and build the graph without a GPU."""
        capabilities = tuple(kind.compute_capability for kind in kinds)
        stand_ins = nearest_of(capabilities)
        request = CheckRequest(
            graph=str(graph.file),
            out="",
            spec=BuildSpec(**{name: getattr(graph.build, name) for name in _CHECKED_FLAGS}),
            compute_capabilities=stand_ins,
            in_place_of=tuple(sorted(set(capabilities) - set(stand_ins))),
            precision=lowered.precision,
            in_fp32=graph.in_fp32,
            deadline_seconds=min(self._options.deadline_minutes, _CHECK_MINUTES) * _SECONDS_PER_MINUTE,
        )
        parameters = {"of": "check", **request.model_dump(mode="json", exclude={"graph", "out"})}

        def check(out: Path) -> BuildCheck:
            self._stages.end_worker()  # the model's memory is the builder's now
            build_request = request.model_copy(update={"out": str(out)})
            check = check_build(build_request, log=self._stages.log_file("check"), progress=self._stages.progress)
            if check.verdict == "unknown":
                raise _Unknown(check)
            return check

        try:
            result = self._stages.entry("compile", [graph.entry.digest], parameters, check, tools="plan_check")
        except _Unknown as unknown:
            return replace(graph, check=unknown.check, cached=False)
        if result is None:
            return None
        entry, cached = result
        built = BuildCheck.model_validate(entry.record)
        return replace(graph, check=built, check_folder=entry.folder, cached=graph.cached and cached)
