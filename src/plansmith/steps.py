"""The verbs of a compile: fetch, export, sample, lower, compile, validate, join, package, check_served, publish.

Each is a plain method that takes and gives finished records; what they share is in `stages`. The heavy
ones are carried out by one worker process, started when the first of them is not in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

from plansmith.basis import Basis
from plansmith.compilers.baselines import HIGHER
from plansmith.config import ModelSpec
from plansmith.delivering import Deliveries
from plansmith.destinations import Publication
from plansmith.digest import Digester
from plansmith.durable import require_writable
from plansmith.engines import Engine
from plansmith.errors import EngineError, ExportError, GateError, PlansmithError
from plansmith.graph_steps import GraphSteps, require_kernels
from plansmith.history import HISTORY, History
from plansmith.join_steps import join, require_dali_here, require_joinable, uses_dali
from plansmith.manifest import Manifest, Package, PublishedVersion, StepRecord
from plansmith.packaging import lay_out, require_servable
from plansmith.parts import Pipeline
from plansmith.plan_judging import JudgedPlans, judge_plans, require_plans
from plansmith.plan_outlook import BuildOutlook, outlook_of
from plansmith.plan_steps import PlanSteps
from plansmith.precision_steps import (
    Judged,
    judge_engine,
    lower_graph,
    may_need_samples,
    needs_samples,
    require_lowered,
)
from plansmith.provenance import surroundings
from plansmith.publishing import Made, publish
from plansmith.python_steps import environments_of, lay_out_model, require_pytorch
from plansmith.recording import Run, recorded
from plansmith.reports import ServedReport, ValidationReport
from plansmith.serving import ask_server
from plansmith.sources.reference import SourceReference
from plansmith.stages import Finished, Listener, WouldRun
from plansmith.stores.shared_cache import SharedCache
from plansmith.targets import Target
from plansmith.triton.loaded_into import LoadedInto
from plansmith.triton.option_rules import require_served
from plansmith.triton.repository import ModelRepository
from plansmith.triton.serving_runtime import ServingRuntime, find_serving_runtime
from plansmith.types import DataSet, EngineKind, LoweredModel, OnnxModel, Precision, SourceModel
from plansmith.validation import require_passed

STEPS = ("fetch", "export", "sample", "lower", "compile", "validate", "join", "package", "check_served", "publish")

P = ParamSpec("P")
R = TypeVar("R")


class Perform(Protocol):
    """How the steps of a `Compilation` are carried out."""

    def __call__(self, step: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do a step and give its result."""
        ...


def _plainly(step: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    return step(*args, **kwargs)


class Compilation(GraphSteps):
    """One model on its way from source to published version; arguments as for `GraphSteps`.

    Raises:
        PlansmithError: what can be known to be wrong before any work is done.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        relative_to: Path,
        listener: Listener | None = None,
        dry: bool = False,
        digester: Digester | None = None,
        shared: SharedCache | None = None,
    ) -> None:
        super().__init__(spec, relative_to=relative_to, listener=listener, dry=dry, digester=digester, shared=shared)
        with self._locating("join"):
            require_joinable(spec, self.reference, self.reference.path)
            require_dali_here(spec, self.target)
        _require_available(spec, self.reference, self.name, self.target)
        require_served(spec, self.name, self.target.device, relative_to)
        self._plans = self._plan_steps() if spec.engine is EngineKind.TENSORRT else None
        self._finished: dict[str, Finished[Any]] = {}
        self._history = History(self._artifacts / HISTORY)
        self.repository = ModelRepository(
            Path(spec.repository or self._artifacts / "repository"), self._stages.digester
        )
        self.repository.require_target(self.target.name)
        with self._locating("publish"):
            self._deliveries = Deliveries(
                spec, relative_to=relative_to, repository=self.repository, stages=self._stages
            )
        if not dry:
            for place in (self._artifacts, self.repository.root, self.repository.store):
                require_writable(place)
            LoadedInto(spec.load_into).require_reachable()
            with self._locating("publish"):
                self._deliveries.require_open()
        self._runtime, self._no_server = self._find_runtime(dry=dry) if spec.check_served else (None, None)

    def run(self, perform: Perform = _plainly) -> tuple[PublishedVersion, Manifest]:
        """All steps, from source to published version; the manifest tells of this run.

        Args:
            perform: carries each step out; an orchestrator puts its own surroundings around them.

        Raises:
            PlansmithError: located at the step that failed; nothing was published.
        """
        if self._stages.dry:
            return self._do(perform)
        with recorded(Run(self._stages, self.spec, self.name, self.repository.root), self._history):
            return self._do(perform)

    def _plan_steps(self) -> PlanSteps:
        with self._locating("compile"):
            return PlanSteps(
                self._stages, self.spec, self.target, relative_to=self._relative_to, artifacts=self._artifacts
            )

    @contextmanager
    def _locating(self, step: str) -> Iterator[None]:
        """Errors outside of the steps say which one they are about."""
        try:
            yield
        except PlansmithError as error:
            raise error.located(model=self.name, step=step) from error.__cause__

    def _find_runtime(self, *, dry: bool) -> tuple[ServingRuntime | None, PlansmithError | None]:
        """What answers the served check; why nothing does, for whoever only looks at what a build would be told."""
        spec = self.spec
        try:
            around = {"dali": uses_dali(spec), "parts": spec.pipeline is not None}
            return find_serving_runtime(spec.tritonserver, self.target, spec.engine, **around), None
        except PlansmithError as error:
            if dry and self._plans:
                return None, error
            raise

    def _do(self, perform: Perform) -> tuple[PublishedVersion, Manifest]:
        self._require_buildable()
        before = None if self._stages.dry else self._surroundings()
        source = perform(self.fetch)
        with self._locating("join"):
            require_joinable(self.spec, self.reference, source.folder)
        onnx = perform(self.export, source)
        data = perform(self.sample, source, onnx) if needs_samples(self.spec, onnx.record) else None
        lowered = perform(self.lower, onnx, data)
        engine = perform(self.compile, source, onnx, lowered)
        validation = perform(self.validate, source, engine, onnx, lowered, data)
        pipeline = perform(self.join, source, onnx, lowered, engine, validation) if self.spec.pipeline else None
        self._stages.end_worker()
        if self._plans is not None:
            self._plans.require_complete(engine.record)
        package = perform(self.package, engine, onnx, pipeline)
        served = perform(self.check_served, package, onnx, validation, pipeline) if self.spec.check_served else None
        made = Made(source, onnx, data, lowered, engine, validation, pipeline, package, served, before)
        return perform(self.publish, made)

    def _surroundings(self) -> Basis:
        """What decides the result besides what the steps bring here."""
        with self._locating("fetch"):
            return surroundings(
                self.spec, self.reference, relative_to=self._relative_to, digester=self._stages.digester
            )

    def plan(self) -> dict[str, str]:
        """What a run would do, step by step; only for a dry compilation."""
        begins, is_shared = "", False
        try:
            self._do(self._remembering)
        except WouldRun as first:
            begins, is_shared = first.step, first.is_shared
        found = {record.name: record.cached for record in self.steps}
        to_do = "would come from the shared cache, or run" if is_shared else "would run"
        plan = {step: "cached" if found.get(step) else to_do for step in STEPS}
        if is_shared:
            plan[begins] = "would come from the shared cache"
        if "publish" in found:
            plan["publish"] = "nothing: the newest version is this one"
        if self.spec.pipeline is None:
            del plan["join"]
        if not self.spec.check_served:
            plan["check_served"] = "left out"
        if self.spec.load_into:
            plan["publish"] += f", and be loaded into {', '.join(self.spec.load_into)}"
        if self._deliveries.places:
            plan["publish"] += f", and go to {', '.join(self._deliveries.places)}"
        if self._no_server is not None:
            plan["check_served"] = f"will be refused: {self._no_server.message}"
        after = "lower" in found or begins == "lower"
        if "sample" not in found and (after or not may_need_samples(self.spec)):
            plan["sample"] = "left out"
        return plan

    def publications(self) -> tuple[Publication, ...]:
        """What would come of the publications to stores, after `plan`; none for a release that is not made yet.

        Raises:
            PlansmithError: a store cannot be asked, or refuses it.
        """
        with self._locating("publish"):
            return self._deliveries.plan()

    def builds(self) -> BuildOutlook | None:
        """What the build of a plan would be told, after `plan`; None for another engine than TensorRT."""
        if self._plans is None:
            return None
        kinds, relative_to = self._plans.known_kinds, self._relative_to
        return outlook_of(self.spec, self.reference, self.target, kinds, self._finished, relative_to=relative_to)

    def _remembering(self, step: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        made = step(*args, **kwargs)
        if isinstance(made, Finished):
            self._finished[step.__name__] = made
        return made

    def _require_buildable(self) -> None:
        """Refuse at once what would end at the build, minutes later.

        Raises:
            PlansmithError: the plan is not in the cache, and this machine cannot build it.
        """
        if self._plans is None or self._stages.dry:
            return
        known = self.outlook()
        if known.get("compile") == "would run":
            with self._locating("compile"):
                self._plans.require_machine()

    def outlook(self) -> dict[str, str]:
        """As `plan`, before a run that is not dry; a step that will be refused says so."""
        with Compilation(
            self.spec,
            relative_to=self._relative_to,
            dry=True,
            digester=self._stages.digester,
            shared=self._shared,
        ) as dry:
            try:
                return dry.plan()
            except PlansmithError as error:
                return {error.step: f"will be refused: {error.message}"}

    @property
    def steps(self) -> list[StepRecord]:
        """How the steps went so far."""
        return self._stages.records

    def compile(
        self, source: Finished[SourceModel], onnx: Finished[OnnxModel], lowered: Finished[LoweredModel]
    ) -> Finished[Engine]:
        """Build the engine that the backend loads.

        Raises:
            EngineError: the graph is refused, or the target cannot read what came out.
            ExportError: TensorRT's parser does not read the graph.
            EnvironmentFault: a plan cannot be built on this machine.
            UsageError: what the spec says of Triton's configuration does not fit the graph.
            SourceError: the PyTorch model, which is itself served, changed or cannot be read.
        """
        options, graph = self.spec.triton.found_from(self._relative_to), lowered.record.components["model"]
        require_servable(options, self.name, self.target.device, graph, self.spec.engine, onnx.record)
        if self._plans is not None:
            return self._plans.compile(onnx, lowered)
        if self.spec.engine is EngineKind.PYTHON:
            return lay_out_model(self._stages, self.spec, self.reference, source, onnx, lowered)
        assert self._onnxruntime is not None
        parameters = self._onnxruntime.model_dump(include={"max_opset", "max_ir_version"})

        def build(out: Path) -> Any:
            record = lowered.record.model_dump(mode="json")
            return self._stages.heavy(
                "compile_engine", lowered=record, folder=str(lowered.folder), out=str(out), **parameters
            )

        return self._stages.stage("compile", Engine, [lowered.digest], parameters, build)

    def validate(
        self,
        source: Finished[SourceModel],
        engine: Finished[Engine],
        onnx: Finished[OnnxModel],
        lowered: Finished[LoweredModel],
        data: Finished[DataSet] | None,
    ) -> Finished[ValidationReport]:
        """Hold the engine against the reference.

        Raises:
            GateError: the verdict is "failed".
        """
        if self._plans is None:
            require = self._with_report(require_passed)
            return judge_engine(self._stages, self.spec, Judged(engine, onnx, lowered, data), require=require)
        higher = self._higher(lowered.record.precision, onnx, data)
        plans = JudgedPlans(engine, source, onnx, lowered, data, higher)
        require = self._with_report(partial(require_plans, speed_check=self.spec.tensorrt.speed_check))
        return judge_plans(self._stages, self.spec, plans, require=require)

    def _higher(
        self, precision: Precision, onnx: Finished[OnnxModel], data: Finished[DataSet] | None
    ) -> Finished[Engine] | None:
        """The plans of the next higher precision, which those of this one have to be faster than."""
        above = HIGHER.get(precision)
        if above is None or onnx.record.precision is not Precision.FP32 or not self.spec.tensorrt.speed_check:
            return None
        assert self._plans is not None
        spec = self.spec.model_copy(update={"precision": above})
        relative_to, device = self._relative_to, self.target.device
        try:
            with self._stages.aside():
                graph = lower_graph(self._stages, spec, relative_to, onnx, data, device=device, require=require_lowered)
                return self._plans.compile(onnx, graph)
        except (ExportError, GateError, EngineError) as error:
            self._stages.notice(f"there is no {above} plan that this one has to be faster than: {error.message}")
            return None

    def join(
        self,
        source: Finished[SourceModel],
        onnx: Finished[OnnxModel],
        lowered: Finished[LoweredModel],
        engine: Finished[Engine],
        validation: Finished[ValidationReport],
    ) -> Finished[Pipeline]:
        """Make what stands around the model, so that clients send and get what people have.

        Raises:
            SourceError: the source has no tokenizer or processor, or one that cannot be carried over.
            UsageError: a pipeline that does not fit the model.
            GateError: the answers are not those of the source's own library.
        """
        return join(self._stages, self.spec, self.target, source, onnx, lowered, engine, validation)

    def package(
        self, engine: Finished[Engine], onnx: Finished[OnnxModel], pipeline: Finished[Pipeline] | None
    ) -> Finished[Package]:
        """Lay out the release: config.pbtxt and the files that Triton loads.

        Raises:
            EngineError: an input or output that Triton cannot carry.
            EnvironmentFault: an environment that the release shall bring with it cannot be packed.
        """
        options = self.spec.triton.found_from(self._relative_to)
        environments = environments_of(self.spec, engine, pipeline, self.target)
        return lay_out(
            self._stages,
            self.name,
            self.target,
            options,
            engine,
            onnx,
            pipeline=pipeline,
            environments=environments,
        )

    def check_served(
        self,
        package: Finished[Package],
        onnx: Finished[OnnxModel],
        validation: Finished[ValidationReport],
        pipeline: Finished[Pipeline] | None,
    ) -> Finished[ServedReport]:
        """Have a real Triton load the release and answer.

        Raises:
            ServedCheckError: it does not load, answers wrongly, or Triton understood another configuration.
        """
        if self._runtime is None:
            raise WouldRun("check_served")
        engine = self._stages.made["compile"]
        assert isinstance(engine, Engine)
        return ask_server(self._stages, self._runtime, package, onnx, validation, engine.build, pipeline)

    def publish(self, made: Made) -> tuple[PublishedVersion, Manifest]:
        """Number the release, exchange the view that Triton reads, and bring it to the spec's destinations.

        Raises:
            RepositoryError: another target's repository, a changed interface, a full or unwritable disk; a destination
                that refuses it.
            EnvironmentFault: a server or a destination cannot be reached.
            ServedCheckError: a server that has to load it does not; it was withdrawn.
        """
        places: dict[str, Any] = {"deliveries": self._deliveries, "relative_to": self._relative_to}
        return publish(self._stages, self.repository, self.spec, self.reference, made, **places)


def _require_available(spec: ModelSpec, reference: SourceReference, name: str, target: Target) -> None:
    """Refuse at once what no later step could do."""
    if spec.engine is EngineKind.PYTHON:
        try:
            require_pytorch(spec, reference)
        except PlansmithError as error:
            raise error.located(model=name, step="compile") from None
    if spec.engine is EngineKind.TENSORRT and spec.precision == "auto":
        raise EngineError(
            "precision auto goes by speed on this machine's CPU, and TensorRT runs elsewhere",
            remedy="choose --precision int8, fp16 or bf16: a plan that is not faster than the next higher one is"
            " refused",
            model=name,
            step="lower",
        )
    if spec.engine is EngineKind.ONNXRUNTIME and spec.precision is Precision.BF16:
        raise EngineError(
            "ONNX Runtime has no BF16 kernels for a CPU, where the release is checked",
            remedy="use --precision fp16, or --engine tensorrt",
            model=name,
            step="lower",
        )
    require_kernels(spec, name, target)
