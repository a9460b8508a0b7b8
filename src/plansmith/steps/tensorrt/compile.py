"""TensorRT compile in the driver: one plan per kind of GPU, checked against the request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from plansmith.compilers.trt import rules
from plansmith.compilers.trt.build import build_plan, probe, refit_plan
from plansmith.compilers.trt.layers import layers_above, require_precision, stored_layers, summarise
from plansmith.compilers.trt.plan_header import read_header
from plansmith.compilers.trt.rtx import require_installed
from plansmith.compilers.trt.timing_cache import TimingCaches
from plansmith.config.spec import ModelSpec
from plansmith.config.targets import Target
from plansmith.errors import EngineError, EnvironmentFault, PlansmithError
from plansmith.records.engine import BuildMachine, BuildRequest, BuildSpec, Engine, Gpu, Plan
from plansmith.records.model import Component, EngineKind, LoweredModel, OnnxModel
from plansmith.steps.cache.local import CacheEntry
from plansmith.steps.cache.shared import SharedTimingCaches
from plansmith.steps.runner import StageRunner, StepResult
from plansmith.steps.tensorrt.graph import GraphSteps, PlanGraph
from plansmith.system import gpus
from plansmith.system.files import link_or_copy
from plansmith.system.gpu_catalog import find_kind, kind_of

PLANS_FOLDER = "plans"
"""What is told of the plans of an engine, in folders by compute capability."""

_SECONDS_PER_MINUTE = 60


class _NotHere(Exception):
    """Raised if this machine cannot build a plan; another one that shares the cache may."""

    def __init__(self, refusal: PlansmithError) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


@dataclass(frozen=True)
class _Built:
    """Finished plan in the cache."""

    entry: CacheEntry
    plan: Plan


class PlanSteps:
    """Plan steps: build the TensorRT plans of one compile.

    Args:
        stages: the compile's steps.
        spec: what is wanted.
        target: the runtime that will serve them.
        relative_to: the folder that paths in the spec start from.
        artifacts: where the timing caches lie.

    Raises:
        EngineError: the target can have no such plan.
        EnvironmentFault: a check is asked for, and its library is not here.
    """

    def __init__(self, stages: StageRunner, spec: ModelSpec, target: Target, *, relative_to: Path, artifacts: Path):
        self._stages = stages
        self._spec = spec
        self._target = target
        self._options = spec.tensorrt.with_absolute_paths(relative_to)
        self._graphs = GraphSteps(stages, spec, target, self._options)
        timing = artifacts / "cache" / "timing"
        shared = stages.shared
        self._caches = SharedTimingCaches(timing, shared.place) if shared is not None else TimingCaches(timing)
        for plugin in self._options.plugins:
            if not Path(plugin).is_file():
                raise EngineError(f"the plugin library {plugin} is not there", remedy="correct tensorrt: plugins")
        self._named = tuple(find_kind(name, gpus.visible_gpus()) for name in self._options.gpus)
        rules.require_target(target, self._options, spec.precision, self._named)
        if spec.tensorrt.check_build:
            require_installed()

    @cached_property
    def known_kinds(self) -> tuple[Gpu, ...]:
        """The GPU types named in the spec; otherwise those of this machine, if it has any."""
        gpu_kinds = (kind_of(gpu) for gpu in gpus.visible_gpus())
        return self._named or tuple({kind.name: kind for kind in gpu_kinds}.values())

    @cached_property
    def kinds(self) -> tuple[Gpu, ...]:
        """The GPU types to build plans for.

        Raises:
            EnvironmentFault: it names none, and this machine has none.
        """
        gpu_kinds = self.known_kinds
        if not gpu_kinds:
            raise EnvironmentFault(
                "this machine has no NVIDIA GPU, and nothing says which one the plan is for",
                remedy="run this on a machine with the GPU that will serve the model, or name the kind (--gpu L4)"
                " where the same --artifacts or --shared-cache holds its plan already",
            )
        if not self._named:
            rules.require_target(self._target, self._options, self._spec.precision, gpu_kinds)
        return gpu_kinds

    @cached_property
    def _machine(self) -> BuildMachine:
        """Return the builders of this machine."""
        return probe(self._stages.log_file("probe"), trtexec=self._options.trtexec)

    def require_machine(self) -> None:
        """Check that this machine can build at least one of the plans.

        Raises:
            EngineError: this machine's TensorRT or GPU is not the target's.
            EnvironmentFault: it has none of one of them.
        """
        refusals = [error for kind in self.kinds if (error := self._refusal(kind)) is not None]
        if len(refusals) == len(self.kinds):
            raise refusals[0]

    def check(self, onnx: StepResult[OnnxModel], lowered: StepResult[LoweredModel]) -> PlanGraph:
        """Check, without a GPU, that the graph parses and builds; only if the spec requests it.

        Raises:
            PlansmithError: as for `GraphSteps.prepare`.
        """
        with self._stages.timed("check_build") as clock:
            graph = self._prepared(onnx, lowered)
            assert graph is not None, "a check is no look"
            clock.cached = graph.cached
        return graph

    def compile(self, onnx: StepResult[OnnxModel], lowered: StepResult[LoweredModel]) -> StepResult[Engine] | None:
        """Build the plans; those for other GPU types come from the cache or are missing in the result.

        Raises:
            ExportError: TensorRT's parser does not read the graph.
            UsageError: profiles that the graph cannot have.
            EngineError: the build failed, or made something else than was asked for.
            EnvironmentFault: nothing can be built here, and nothing is in the cache.
        """
        with self._stages.timed("compile") as clock:
            rules.require_target(self._target, self._options, lowered.record.precision, self.known_kinds)
            component = lowered.record.components["model"]
            graph = self._prepared(onnx, lowered)
            if graph is None or (self._stages.dry and not self.known_kinds):
                clock.is_missing = True
                return None
            clock.cached = graph.cached
            built: dict[str, _Built] = {}
            refusals = []
            for kind in self.kinds:
                try:
                    result = self._plan(graph, kind)
                except _NotHere as problem:
                    refusals.append(problem.refusal)
                    continue
                if result is None:
                    clock.is_missing = True
                    return None
                built[kind.compute_capability], cached = result
                clock.cached &= cached
            if not built:
                raise refusals[0]
            for refusal in refusals:
                again = "run the same command there, with the same --artifacts or --shared-cache"
                self._stages.notice(f"{refusal.message}; {again}")
            built = {
                cc: replace(artifact, plan=self._as_asked(artifact, graph, lowered.record))
                for cc, artifact in built.items()
            }
            entry = self._combined(lowered.record, component, graph.build, built)
            if entry is None:
                clock.is_missing = True
                return None
            # The libraries of plugins are keyed by content, and each machine has its own paths to them.
            own = {"build": graph.build, "build_check": graph.check}
            record = Engine.model_validate(entry.record).model_copy(update=own)
            self._stages.results["compile"] = record
        return StepResult(record, entry.folder, entry.digest, clock.cached)

    def require_complete(self, engine: Engine) -> None:
        """Check that every GPU type has its plan.

        Raises:
            EngineError: names those that have none.
        """
        missing = [kind for kind in self.kinds if kind.compute_capability not in engine.plans]
        if missing:
            names = ", ".join(f"{kind.name} ({kind.compute_capability})" for kind in missing)
            raise EngineError(
                f"there is no plan for {names} yet, and Triton would find none on such a GPU",
                remedy=f"run the same command on a machine with it, in {rules.describe_containers(self._target)},"
                " with the same --artifacts or --shared-cache and without --force: what was built here stays there",
                step="compile",
            )

    def _refusal(self, kind: Gpu) -> PlansmithError | None:
        try:
            rules.choose_builder(self._target, self._options, self._machine, kind)
        except PlansmithError as error:
            return error
        if self._machine.api:
            return None
        return EnvironmentFault(
            "a plan is judged through TensorRT's Python package, which is not here"
            + (f": {self._machine.api_problem}" if self._machine.api_problem else ""),
            remedy=f"build in {rules.describe_containers(self._target)}; TensorRT's image has the package, and in"
            f" Triton's, which has the libraries: pip install --no-deps {_bindings(self._target)}",
        )

    def _prepared(self, onnx: StepResult[OnnxModel], lowered: StepResult[LoweredModel]) -> PlanGraph | None:
        return self._graphs.prepare(onnx.record, lowered, self.known_kinds)

    def _plan(self, graph: PlanGraph, kind: Gpu) -> tuple[_Built, bool] | None:
        """Return the plan for a kind of GPU, with weights; None in a dry run without a cached one.

        Raises:
            _NotHere: it is not in the cache, and cannot be built on this machine.
        """
        build = graph.build
        parameters = {
            "tensorrt": self._target.tensorrt,
            "gpu": kind.name,
            "compute_capability": kind.compute_capability,
            "build": build.model_dump(mode="json", exclude={"plugins"}),
            "plugins": [self._stages.digester.file(Path(plugin), foreign=True) for plugin in build.plugins],
            "builder": self._options.builder,
        }
        make = partial(self._build, graph, kind)
        result = self._stages.entry("compile", [graph.entry.digest], {"of": "plan", **parameters}, make, tools="plan")
        if result is None:
            return None
        entry, cached = result
        plan = Plan.model_validate(entry.record)
        for warning in () if cached else plan.warnings:
            self._stages.notice(warning)
        if not build.strip_weights:
            return _Built(entry, plan), cached
        inputs = [entry.digest, graph.entry.digest]
        restore = partial(self._refit, graph, kind, _Built(entry, plan))
        result = self._stages.entry("compile", inputs, {"of": "refitted plan"}, restore, tools="plan")
        if result is None:
            return None
        whole, refitted = result
        return _Built(whole, Plan.model_validate(whole.record)), cached and refitted

    def _build(self, graph: PlanGraph, kind: Gpu, out: Path) -> Plan:
        choice = self._choice(kind)
        for notice in choice.notices:
            self._stages.notice(notice)
        self._stages.end_worker()  # the model's memory is the builder's now
        request = BuildRequest(
            graph=str(graph.file),
            out=str(out),
            spec=graph.build,
            gpu=choice.gpu,
            trtexec=choice.trtexec,
            timing_cache="",
            deadline_seconds=self._options.deadline_minutes * _SECONDS_PER_MINUTE,
        )
        return build_plan(
            request,
            log=self._stages.log_file(f"build-sm{_sm(kind.compute_capability)}"),
            progress=self._stages.progress,
            waiting=self._stages.waits_for_gpu,
            cache=self._caches,
        )

    def _refit(self, graph: PlanGraph, kind: Gpu, stripped: _Built, out: Path) -> Plan:
        """Refit a stripped plan with its weights."""
        gpu, plan, folder = self._choice(kind).gpu, stripped.plan, stripped.entry.folder
        for file in _files(plan)[1:]:
            link_or_copy(folder / file, out / file)
        refit_plan(
            folder / plan.file,
            graph.file,
            out / plan.file,
            spec=graph.build,
            gpu=gpu,
            log=self._stages.log_file(f"refit-sm{_sm(kind.compute_capability)}"),
            progress=self._stages.progress,
            waiting=self._stages.waits_for_gpu,
        )
        return plan.model_copy(update={"refitted": True, "bytes": (out / plan.file).stat().st_size})

    def _choice(self, kind: Gpu) -> rules.Choice:
        """Return the builder for a kind of GPU; raise _NotHere if none here can build for it."""
        try:
            return rules.choose_builder(self._target, self._options, self._machine, kind)
        except PlansmithError as error:
            raise _NotHere(error) from None

    def _as_asked(self, built: _Built, graph: PlanGraph, lowered: LoweredModel) -> Plan:
        """Check the build against the request: the version in its header, the precision of its layers."""
        plan, folder = built.plan, built.entry.folder
        header = read_header(folder / plan.file)
        rules.require_header(header, self._target, self._options)
        layers = stored_layers(folder / plan.layers_file)
        untold = require_precision(layers, lowered.precision, graph.in_fp32)
        summary = summarise(layers, layers_above(layers, lowered.precision))
        return plan.model_copy(
            update={
                "tensorrt": header.tensorrt,
                "layer_summary": summary,
                "warnings": (*plan.warnings, *untold),
            }
        )

    def _combined(
        self, lowered: LoweredModel, component: Component, build: BuildSpec, built: Mapping[str, _Built]
    ) -> CacheEntry | None:
        """Return one folder with all plans and their records."""
        named = {cc: _placed(artifact.plan, cc, alone=len(built) == 1) for cc, artifact in built.items()}
        first = next(iter(named.values()))
        engine = Engine(
            kind=EngineKind.TENSORRT,
            components={"model": component.model_copy(update={"file": first.file, "external_files": ()})},
            precision=lowered.precision,
            options={},
            toolchain={"tensorrt": first.tensorrt},
            build=build,
            plans=named,
        )

        def gather(out: Path) -> Engine:
            for cc, artifact in built.items():
                for before, after in zip(_files(artifact.plan), _files(named[cc]), strict=True):
                    link_or_copy(artifact.entry.folder / before, out / after)
            return engine

        inputs = [artifact.entry.digest for artifact in built.values()]
        parameters = {"of": "engine", "precision": lowered.precision, "interface": component.model_dump(mode="json")}
        result = self._stages.entry("compile", inputs, parameters, gather, tools="plan")
        return None if result is None else result[0]


def _bindings(target: Target) -> str:
    """Return the distribution of the Python bindings for a target's TensorRT."""
    major = (target.cuda or "13").partition(".")[0]
    return f"tensorrt-cu{major}-bindings=={target.tensorrt}"


def _sm(compute_capability: str) -> str:
    return compute_capability.replace(".", "")


def _files(plan: Plan) -> tuple[str, ...]:
    return plan.file, *plan.description_files


def _placed(plan: Plan, compute_capability: str, *, alone: bool) -> Plan:
    """Return the plan renamed for a folder of several plans, with its reports in a subfolder."""
    fields = ("layers_file", "log", "reproduce", "request")
    placed = {field: f"{PLANS_FOLDER}/{compute_capability}/{getattr(plan, field)}" for field in fields}
    name = plan.file if alone else f"{Path(plan.file).stem}_sm{_sm(compute_capability)}.plan"
    return plan.model_copy(update={"file": name, **placed})
