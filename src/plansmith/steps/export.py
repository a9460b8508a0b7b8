"""Export step in the driver: obtains the graph and the reference outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from plansmith.compilers.export.requests import (
    EXPORT,
    IMPORT_ONNX,
    RUN_REFERENCE,
    ExportRequest,
    ImportRequest,
    ReferenceRequest,
)
from plansmith.config.spec import ModelSpec
from plansmith.config.targets import Target, require_onnxruntime
from plansmith.records.model import EngineKind, InputRange, OnnxModel, Record, SourceModel
from plansmith.steps.context import ModelContext
from plansmith.steps.fetch import PLACE, load_request, require_unchanged
from plansmith.steps.runner import StageRunner, StepResult

if TYPE_CHECKING:
    from plansmith.system.tasks import Task

Q = TypeVar("Q", bound=Record)


@dataclass(frozen=True)
class _GraphWork:
    """Graph export task: what the worker does to obtain a graph.

    Attributes:
        tools: whose toolchain the graph depends on.
        parameters: what decides it besides the source, as JSON values.
        run: does it, into a folder.
    """

    tools: str
    parameters: dict[str, Any]
    run: Callable[[Path], OnnxModel]


def export(context: ModelContext, source: StepResult[SourceModel]) -> StepResult[OnnxModel] | None:
    """Export to ONNX, or import an ONNX file, and store the reference outputs.

    A model that is served as PyTorch is asked alone, and nothing is exported.

    Raises:
        ExportError: no exporter's graph agrees with the model.
        SourceError: the model cannot be loaded, or changed while it was read.
        EnvironmentFault: it does not fit into memory, or there is no GPU to hold it.
        UsageError: shapes, inputs or outputs that the model does not have.
    """
    stages, spec = context.stages, context.spec
    work = _work_of(stages, spec, context.target, source)

    def build(out: Path) -> OnnxModel:
        record = work.run(out)
        require_unchanged(stages, spec, source)
        return record

    onnx = stages.stage("export", OnnxModel, [source.digest], work.parameters, build, tools=work.tools)
    if onnx is None:
        return None
    if onnx.record.reference.guessed and spec.data is None:
        stages.notice(f"the checks use {onnx.record.reference.data}; real inputs would tell more")
    for axis in onnx.record.constrained_axes:
        stages.notice(axis.explanation)
    return onnx


def _work_of(stages: StageRunner, spec: ModelSpec, target: Target, source: StepResult[SourceModel]) -> _GraphWork:
    profiles: dict[str, InputRange] = {}
    if spec.engine is EngineKind.TENSORRT:
        from plansmith.compilers.trt.profiles import shapes_of

        profiles = shapes_of(spec.tensorrt.profiles)
    if source.record.scheme == "onnx":
        request = ImportRequest(
            path=Path(source.record.location),
            shapes=spec.shapes,
            profiles=profiles,
            inputs=spec.described_inputs,
            outputs=spec.outputs,
            out=Path(),
        )
        return _work(stages, IMPORT_ONNX, request)
    model, shapes = load_request(spec, source), spec.shapes or profiles
    if spec.engine is EngineKind.PYTHON:
        return _work(stages, RUN_REFERENCE, ReferenceRequest(model=model, shapes=shapes, out=Path()))
    opset = _max_opset(spec, target)
    return _work(stages, EXPORT, ExportRequest(model=model, shapes=shapes, max_opset=opset, out=Path()))


def _work(stages: StageRunner, task: Task[Q, OnnxModel], request: Q) -> _GraphWork:
    parameters = request.model_dump(mode="json", exclude={"path": True, "model": PLACE, "out": True})
    return _GraphWork(
        task.name, parameters, lambda out: stages.run_in_worker(task, request.model_copy(update={"out": out}))
    )


def _max_opset(spec: ModelSpec, target: Target) -> int:
    """Return the newest opset that the target's engine reads."""
    if spec.engine is EngineKind.ONNXRUNTIME:
        return require_onnxruntime(target).max_opset
    from plansmith.compilers.precision.lint.view import newest_opset, version_of

    return newest_opset(version_of(target.tensorrt or ""))
