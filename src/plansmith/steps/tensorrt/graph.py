"""The graph of a plan, as far as it goes without a GPU: made ready, looked over, and built by another library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.compilers.trt.check import library
from plansmith.compilers.trt.check.check import check_build
from plansmith.compilers.trt.formats import require_formats
from plansmith.compilers.trt.profiles import profiles_of
from plansmith.config.spec import ModelSpec
from plansmith.config.target.targets import Target
from plansmith.config.tensorrt import TensorRTOptions
from plansmith.errors import EngineError, ExportError
from plansmith.records.engine import BuildCheck, BuildSpec, CheckRequest, Gpu
from plansmith.records.model import Component, KeptNode, LoweredModel, OnnxModel
from plansmith.report.text.plan import check_words
from plansmith.steps.cache.local import Entry
from plansmith.steps.runner import Finished, StageRunner

_SECONDS_PER_MINUTE = 60
_CHECK_MINUTES = 10
"""A check takes no longer than this, whatever a build on a GPU may take."""

# What decides whether there can be a plan. The other flags are about speed, or about a runtime that is not here.
_CHECKED_FLAGS = ("formats", "profiles", "tf32")


@dataclass(frozen=True)
class PlanGraph:
    """A graph that is ready for TensorRT, and what its plan is built with.

    `check`: None where none was asked for; `check_folder`: where its files lie; `cached`: nothing had to be done.
    """

    entry: Entry
    build: BuildSpec
    cached: bool
    check: BuildCheck | None = None
    check_folder: Path | None = None

    @property
    def layers_file(self) -> Path | None:
        """All layers of what the check built, as JSON; None where nothing tells."""
        if self.check is None or self.check_folder is None or not self.check.layers_file:
            return None
        return self.check_folder / self.check.layers_file

    @property
    def file(self) -> Path:
        """The ONNX file, its weights beside it."""
        return self.entry.folder / self.component.file

    @property
    def component(self) -> Component:
        """Its own record."""
        return Component.model_validate(self.entry.record["component"])

    @property
    def in_fp32(self) -> tuple[KeptNode, ...]:
        """The nodes that compute in FP32 on purpose."""
        return tuple(KeptNode.model_validate(node) for node in self.entry.record["in_fp32"])


def prepare_graph(
    stages: StageRunner,
    spec: ModelSpec,
    target: Target,
    options: TensorRTOptions,
    onnx: OnnxModel,
    lowered: Finished[LoweredModel],
    *,
    kinds: Sequence[Gpu],
) -> PlanGraph:
    """Make a graph ready, and refuse what TensorRT would refuse, before a GPU is kept busy with it.

    Args:
        stages: the compile's steps.
        spec: what is wanted.
        target: the runtime that will serve the plan.
        options: of the spec, with absolute paths.
        onnx: the exported graph.
        lowered: what becomes the plan.
        kinds: of GPU that the plan is for, as far as they are known.

    Raises:
        ExportError: TensorRT's parser does not read the graph.
        UsageError: profiles that the graph cannot have.
        EngineError: formats that its inputs and outputs cannot have; or the check refuses the graph.
        EnvironmentFault: a check is asked for, and its library is not here.
    """
    component = lowered.record.components["model"]
    entry, cached = _ready(stages, lowered)
    build = options.build_spec(profiles_of(options, component.inputs, onnx.axes, entry.record["shape_inputs"]))
    require_formats(build.formats, (*component.inputs, *component.outputs))
    graph = PlanGraph(entry, build, cached)
    if not options.check_build:
        _lint(stages, spec, target, graph, lowered.record)
        return graph
    try:
        found, checked = _check(stages, graph, lowered.record, options, kinds)
    except EngineError as error:
        raise _with_lint(error, lambda: _lint(stages, spec, target, graph, lowered.record)) from error
    check = BuildCheck.model_validate(found.record)
    _lint(stages, spec, target, graph, lowered.record, check)
    if not checked and check.verdict == "unknown":
        stages.notice(check_words(check))
    return PlanGraph(entry, build, cached and checked, check, found.folder)


def _with_lint(refusal: EngineError, lint: Callable[[], None]) -> EngineError:
    """A refusal with what the lint knows of the same graph, where it knows anything."""
    try:
        lint()
    except ExportError as known:
        return EngineError(f"{refusal.message}\n{known.message}", remedy=known.remedy, log=refusal.log)
    return refusal


def _ready(stages: StageRunner, lowered: Finished[LoweredModel]) -> tuple[Entry, bool]:
    """The graph as TensorRT gets it, and its inputs that hold a shape."""

    def prepare(out: Path) -> Any:
        record = lowered.record.model_dump(mode="json")
        return stages.heavy("plan_graph", lowered=record, folder=str(lowered.folder), out=str(out))

    return stages.entry("compile", [lowered.digest], {"of": "graph"}, prepare, tools="plan_graph")


def _lint(
    stages: StageRunner,
    spec: ModelSpec,
    target: Target,
    graph: PlanGraph,
    lowered: LoweredModel,
    check: BuildCheck | None = None,
) -> None:
    """Refuse what TensorRT's parser would refuse or get wrong."""
    record = lowered.model_copy(update={"components": {"model": graph.component}}).model_dump(mode="json")
    parameters = {
        "profiles": [profile.model_dump(mode="json") for profile in graph.build.profiles],
        "tensorrt": target.tensorrt,
        "plugins": bool(graph.build.plugins),
        "accepted": list(spec.lowering.accept),
        "built": check is not None and check.verdict == "built",
    }

    def look(_: Path) -> Any:
        return stages.heavy("lint_plan", lowered=record, folder=str(graph.entry.folder), **parameters)

    found, _ = stages.entry("compile", [graph.entry.digest], {"of": "lint", **parameters}, look, tools="plan_lint")
    for warning in found.record["warnings"]:
        stages.notice(warning)


def _check(
    stages: StageRunner, graph: PlanGraph, lowered: LoweredModel, options: TensorRTOptions, kinds: Sequence[Gpu]
) -> tuple[Entry, bool]:
    """Have the graph parsed and built without a GPU."""
    library.require_installed()
    wanted = tuple(kind.compute_capability for kind in kinds)
    request = CheckRequest(
        graph=str(graph.file),
        out="",
        spec=BuildSpec(**{name: getattr(graph.build, name) for name in _CHECKED_FLAGS}),
        compute_capabilities=library.nearest_of(wanted),
        in_place_of=tuple(sorted(set(wanted) - set(library.nearest_of(wanted)))),
        precision=lowered.precision,
        in_fp32=graph.in_fp32,
        deadline_seconds=min(options.deadline_minutes, _CHECK_MINUTES) * _SECONDS_PER_MINUTE,
    )
    parameters = {"of": "check", **request.model_dump(mode="json", exclude={"graph", "out"})}

    def check(out: Path) -> Any:
        stages.end_worker()  # the model's memory is the builder's now
        asked = request.model_copy(update={"out": str(out)})
        found = check_build(asked, log=stages.log_file("check"), progress=stages.progress)
        return found.model_dump(mode="json")

    return stages.entry("compile", [graph.entry.digest], parameters, check, tools="plan_check")
