"""The steps from a source to an engine that was judged, and to what stands around it; a release is made of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

from plansmith.compilers.trt.evaluation.baselines import HIGHER
from plansmith.config.spec import ModelSpec
from plansmith.errors import EngineError, ExportError, GateError
from plansmith.records.engine import BuildCheck, Engine
from plansmith.records.model import DataSet, EngineKind, LoweredModel, OnnxModel, Precision, SourceModel
from plansmith.records.pipeline import Pipeline
from plansmith.records.validation import ValidationReport
from plansmith.steps.artifacts import MadeModel
from plansmith.steps.cache.shared import SharedCache
from plansmith.steps.compile_python import lay_out_model, require_pytorch
from plansmith.steps.graph_steps import GraphSteps
from plansmith.steps.lower import lower_graph, require_lowered
from plansmith.steps.pipeline import join, require_batches, require_dali_here, require_joinable
from plansmith.steps.release.package import require_servable
from plansmith.steps.requirements import require_available
from plansmith.steps.runner import Finished, Listener, StageRunner
from plansmith.steps.sample import needs_samples
from plansmith.steps.tensorrt.validate import JudgedPlans, judge_plans, require_plans
from plansmith.steps.validate import Judged, judge_engine
from plansmith.system.digest import Digester
from plansmith.validation.gate import require_passed

P = ParamSpec("P")

R = TypeVar("R")


class Perform(Protocol):
    """How the steps of a `Compilation` are carried out."""

    def __call__(self, step: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do a step and give its result."""
        ...


def plainly(step: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Do a step and give its result, as `Perform` does."""
    return step(*args, **kwargs)


class ModelSteps(GraphSteps):
    """One model on its way from source to engine and pipeline; arguments as for `GraphSteps`.

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
        stages: StageRunner | None = None,
    ) -> None:
        super().__init__(
            spec, relative_to=relative_to, listener=listener, dry=dry, digester=digester, shared=shared, stages=stages
        )
        with self._locating("join"):
            require_joinable(spec, self.reference.scheme, self.reference.path)
            require_dali_here(spec, self.target)
        require_available(spec, self.reference, self.name, self.target)
        self._plans = self._plan_steps() if spec.engine is EngineKind.TENSORRT else None

    def make(self, perform: Perform) -> MadeModel:
        """The steps of this class and of the one below it, in their order.

        Args:
            perform: carries each step out.

        Raises:
            PlansmithError: located at the step that failed.
        """
        source = perform(self.fetch)
        with self._locating("compile"):
            if self.spec.engine is EngineKind.PYTHON:
                require_pytorch(self.spec, source.record.scheme)
        with self._locating("join"):
            require_joinable(self.spec, source.record.scheme, source.folder)
        onnx = perform(self.export, source)
        with self._locating("join"):
            require_batches(self.spec, onnx.record)
        data = perform(self.sample, source, onnx) if needs_samples(self.spec, onnx.record) else None
        lowered = perform(self.lower, onnx, data)
        engine = perform(self.compile, source, onnx, lowered)
        validation = perform(self.validate, source, engine, onnx, lowered, data)
        made = MadeModel(source, onnx, data, lowered, engine, validation, None)
        return replace(made, pipeline=perform(self.join, made)) if self.spec.pipeline else made

    def check_build(self) -> BuildCheck:
        """Make the graph, and have TensorRT-RTX parse and build it, as the spec asks for; nothing is built for a GPU.

        Raises:
            PlansmithError: located at the step that failed, or at the one that refuses the graph.
        """
        assert self._plans is not None
        source = self.fetch()
        onnx = self.export(source)
        data = self.sample(source, onnx) if needs_samples(self.spec, onnx.record) else None
        check = self._plans.check(onnx, self.lower(onnx, data)).check
        assert check is not None
        return check

    def require_complete(self, made: MadeModel) -> None:
        """See that every plan is there: machines that share the cache each build their own.

        Raises:
            PlansmithError: one is not.
        """
        if self._plans is not None:
            self._plans.require_complete(made.engine.record)

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

    def join(self, made: MadeModel) -> Finished[Pipeline]:
        """Make what stands around the model, so that clients send and get what people have.

        Raises:
            SourceError: the source has no tokenizer or processor, or one that cannot be carried over.
            UsageError: a pipeline that does not fit the model.
            GateError: the answers are not those of the source's own library.
        """
        return join(self._stages, self.spec, self.target, made)
