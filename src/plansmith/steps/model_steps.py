"""Steps of one model, from its source to a validated engine and its pipeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from plansmith.config.source_reference import SourceReference
from plansmith.config.spec import ModelSpec
from plansmith.config.targets import Target, require_onnxruntime
from plansmith.errors import EngineError, ExportError, GateError, PlansmithError, SourceError
from plansmith.records.engine import BuildCheck, Engine
from plansmith.records.model import DataSet, EngineKind, LoweredModel, OnnxModel, Precision, SourceModel
from plansmith.records.pipeline import Pipeline
from plansmith.records.validation import ValidationReport
from plansmith.steps.artifacts import CompiledModel
from plansmith.steps.context import ModelContext, graph_context
from plansmith.steps.export import export
from plansmith.steps.fetch import fetch
from plansmith.steps.lower import lower_graph, require_kernels, require_lowered
from plansmith.steps.pipeline import join, require_batches, require_dali_here, require_joinable
from plansmith.steps.runner import StageRunner, StepResult
from plansmith.steps.sample import needs_samples, take_samples
from plansmith.steps.validate import ValidationInputs, validate_engine
from plansmith.steps.walk import Step, walk
from plansmith.triton.config.option_rules import require_servable
from plansmith.validation.verdict import require_known_outputs, require_passed


def model_context(spec: ModelSpec, relative_to: Path, stages: Callable[[], StageRunner]) -> ModelContext:
    """Return the context shared by the steps of one model; arguments as for `graph_context`.

    Raises:
        PlansmithError: what can be known to be wrong before any work is done.
    """
    context = graph_context(spec, relative_to, stages)
    with context.located("join"):
        require_joinable(spec, context.reference.scheme, context.reference.path)
        require_dali_here(spec, context.target)
    _require_available(spec, context.reference, context.name, context.target)
    return with_plans(context) if spec.engine is EngineKind.TENSORRT else context


def _require_available(spec: ModelSpec, reference: SourceReference, name: str, target: Target) -> None:
    """Refuse immediately what no later step could do."""
    if spec.engine is EngineKind.PYTHON:
        from plansmith.steps.compile_python import require_pytorch

        try:
            require_pytorch(spec, reference.scheme)
        except PlansmithError as error:
            raise error.located(model=name, step="compile") from None
    if spec.engine is EngineKind.TENSORRT and spec.precision == "auto":
        raise EngineError(
            "precision auto goes by speed on this machine's CPU, and TensorRT runs elsewhere",
            remedy="choose --precision int8, fp8, fp16 or bf16: a plan that is not faster than the next higher one is"
            " refused",
            model=name,
            step="lower",
        )
    require_kernels(spec, name, target)


def with_plans(context: ModelContext) -> ModelContext:
    """Return the context with the builder and checker of TensorRT plans.

    Raises:
        PlansmithError: as for `PlanSteps`.
    """
    from plansmith.steps.tensorrt.compile import PlanSteps

    spec = context.spec
    with context.located("compile"):
        plans = PlanSteps(
            context.stages,
            spec,
            context.target,
            relative_to=context.relative_to,
            artifacts=Path(spec.artifacts).absolute(),
        )
    return replace(context, plans=plans)


def fetch_model(context: ModelContext, _: CompiledModel) -> StepResult[SourceModel] | None:
    """Fetch the model: a directory or file by content, a Hub model at its commit, or random weights.

    Raises:
        SourceError: there is no such model, or it may not be read; or nothing lies where data should.
        EnvironmentFault: the hub cannot be reached.
    """
    spec = context.spec
    if spec.data is not None:
        from plansmith.sources.dataset import require_data

        try:
            require_data(spec.data, context.relative_to)
        except SourceError as error:
            raise error.located(model=context.name, step="sample") from None
    return fetch(context.stages, spec, context.reference)


def _require_exportable(context: ModelContext, compiled: CompiledModel) -> None:
    spec, source = context.spec, compiled.source
    with context.located("compile"):
        if spec.engine is EngineKind.PYTHON:
            from plansmith.steps.compile_python import require_pytorch

            require_pytorch(spec, source.record.scheme)
    with context.located("join"):
        require_joinable(spec, source.record.scheme, source.folder)


def export_model(context: ModelContext, compiled: CompiledModel) -> StepResult[OnnxModel] | None:
    """Export to ONNX, or import an ONNX file, and store the reference outputs; errors as of `export`."""
    return export(context, compiled.source)


def _require_batches(context: ModelContext, compiled: CompiledModel) -> None:
    with context.located("validate"):
        outputs = [tensor for component in compiled.onnx.record.components.values() for tensor in component.outputs]
        require_known_outputs(context.spec.tolerances, outputs)
    with context.located("join"):
        require_batches(context.spec, compiled.onnx.record)


def _needs_samples(context: ModelContext, compiled: CompiledModel) -> bool:
    return needs_samples(context.spec, compiled.onnx.record)


def sample(context: ModelContext, compiled: CompiledModel) -> StepResult[DataSet] | None:
    """Sample the data into inputs, in two disjoint sets, and run the source model on them.

    Raises:
        SourceError: the data cannot be read, or are too few.
        UsageError: columns, labels or inputs that are not there.
    """
    return take_samples(context.stages, context.spec, context.relative_to, compiled.source, compiled.onnx)


def lower(context: ModelContext, compiled: CompiledModel) -> StepResult[LoweredModel] | None:
    """Lower the graph's precision; a graph that already has it passes through.

    Raises:
        ExportError: the graph is lowered already, or cannot be.
        GateError: no recipe is accurate enough.
    """
    require = context.with_report(partial(require_lowered, budget=context.spec.lowering.budget))
    return _lowered(context, context.spec, compiled, require)


def _lowered(
    context: ModelContext, spec: ModelSpec, compiled: CompiledModel, require: Callable[[LoweredModel], None]
) -> StepResult[LoweredModel] | None:
    stages, device = context.stages, context.target.device
    return lower_graph(stages, spec, compiled.onnx, compiled.data, device=device, require=require)


def compile_model(context: ModelContext, compiled: CompiledModel) -> StepResult[Engine] | None:
    """Compile the engine that the backend loads.

    Raises:
        EngineError: the graph is refused, or the target cannot read what came out.
        ExportError: TensorRT's parser does not read the graph.
        EnvironmentFault: a plan cannot be built on this machine.
        UsageError: what the spec says of Triton's configuration does not fit the graph.
        SourceError: the PyTorch model, which is itself served, changed or cannot be read.
    """
    spec, stages, lowered = context.spec, context.stages, compiled.lowered
    options, graph = spec.triton.with_absolute_paths(context.relative_to), lowered.record.components["model"]
    require_servable(options, context.name, context.target.device, graph, spec.engine, compiled.onnx.record)
    if context.plans is not None:
        return context.plans.compile(compiled.onnx, lowered)
    if spec.engine is EngineKind.PYTHON:
        from plansmith.steps.compile_python import build_model_folder

        return build_model_folder(stages, spec, context.reference, compiled.source, compiled.onnx, lowered)
    parameters = require_onnxruntime(context.target).model_dump(include={"max_opset", "max_ir_version"})

    def build(out: Path) -> Engine:
        from plansmith.steps.worker import tasks

        request = tasks.EngineRequest(lowered=lowered.record, folder=lowered.folder, out=out, **parameters)
        return stages.run_in_worker(tasks.COMPILE_ENGINE, request)

    return stages.stage("compile", Engine, [lowered.digest], parameters, build)


def validate(context: ModelContext, compiled: CompiledModel) -> StepResult[ValidationReport] | None:
    """Validate the engine: compare it with the reference.

    Raises:
        GateError: the verdict is "failed".
    """
    if context.plans is None:
        judged = ValidationInputs(compiled.engine, compiled.onnx, compiled.lowered, compiled.data)
        return validate_engine(context.stages, context.spec, judged, require=context.with_report(require_passed))
    from plansmith.steps.tensorrt.validate import PlanValidationInputs, require_plans, validate_plans

    higher = None
    above = _higher_precision(context, compiled)
    if above is not None:
        try:
            higher = _build_higher(context, compiled, above)
        except (ExportError, GateError, EngineError) as error:
            context.stages.notice(f"there is no {above} plan that this one has to be faster than: {error.message}")
        else:
            if higher is None:  # a look does not build it, and without it knows nothing of the verdict
                return None
    plans = PlanValidationInputs(
        engine=compiled.engine,
        source=compiled.source,
        onnx=compiled.onnx,
        lowered=compiled.lowered,
        data=compiled.data,
        higher=higher,
    )
    require = context.with_report(partial(require_plans, speed_check=context.spec.tensorrt.speed_check))
    return validate_plans(context.stages, context.spec, plans, require=require)


def _higher_precision(context: ModelContext, compiled: CompiledModel) -> Precision | None:
    """Return the next higher precision, whose plans those of this one must outperform."""
    from plansmith.compilers.trt.evaluation.baselines import HIGHER

    if compiled.onnx.record.precision is not Precision.FP32 or not context.spec.tensorrt.speed_check:
        return None
    return HIGHER.get(compiled.lowered.record.precision)


def _build_higher(context: ModelContext, compiled: CompiledModel, above: Precision) -> StepResult[Engine] | None:
    assert context.plans is not None
    spec = context.spec.model_copy(update={"precision": above})
    with context.stages.nested():
        graph = _lowered(context, spec, compiled, partial(require_lowered, budget=spec.lowering.budget))
        return context.plans.compile(compiled.onnx, graph) if graph is not None else None


def join_model(context: ModelContext, compiled: CompiledModel) -> StepResult[Pipeline] | None:
    """Build the pipeline (join step), so that clients send and receive raw inputs and outputs.

    Raises:
        SourceError: the source has no tokenizer or processor, or one that cannot be carried over.
        UsageError: a pipeline that does not fit the model.
        GateError: the answers are not those of the source's own library.
    """
    return join(context.stages, context.spec, context.target, compiled)


def _has_pipeline(context: ModelContext, _: CompiledModel) -> bool:
    return context.spec.pipeline is not None


def _step(
    name: str, make: Callable[[ModelContext, CompiledModel], StepResult[Any] | None], **more: Any
) -> Step[ModelContext, CompiledModel]:
    def run(context: ModelContext, compiled: CompiledModel) -> CompiledModel | None:
        result = make(context, compiled)
        return None if result is None else compiled.with_result(name, result)

    return Step(name, run, **more)


GRAPH_STEPS = (
    _step("fetch", fetch_model),
    _step("export", export_model, check=_require_exportable),
    _step("sample", sample, is_needed=_needs_samples, check=_require_batches),
    _step("lower", lower),
)
"""From a source to a lowered graph."""

MODEL_STEPS = (
    *GRAPH_STEPS,
    _step("compile", compile_model),
    _step("validate", validate),
    _step("join", join_model, is_needed=_has_pipeline),
)
"""From a source to an engine that was judged, and to what stands around it."""


def check_build(context: ModelContext) -> BuildCheck:
    """Prepare the graph, and have TensorRT-RTX parse and build it; builds nothing for a GPU.

    Raises:
        PlansmithError: located at the step that failed, or at the one that refuses the graph.
    """
    assert context.plans is not None
    compiled = walk(GRAPH_STEPS, context, CompiledModel()).state
    check = context.plans.check(compiled.onnx, compiled.lowered).check
    assert check is not None
    return check


def require_complete(context: ModelContext, compiled: CompiledModel) -> None:
    """Require that every plan exists: machines that share the cache each build their own.

    Raises:
        EngineError: one is not.
    """
    if context.plans is not None:
        context.plans.require_complete(compiled.engine.record)
