"""Python backend steps in the driver: packaging a PyTorch model and its dependencies."""

from __future__ import annotations

from pathlib import Path

from plansmith.config.source_reference import Scheme, SourceReference
from plansmith.config.spec import ModelSpec
from plansmith.errors import EngineError, UsageError
from plansmith.records.engine import Engine
from plansmith.records.model import EngineKind, LoweredModel, OnnxModel, Precision, SourceModel
from plansmith.steps.fetch import PLACE, load_request, require_unchanged
from plansmith.steps.runner import StageRunner, StepResult


def require_pytorch(spec: ModelSpec, scheme: Scheme) -> None:
    """Require that a spec's options apply to a PyTorch model.

    Raises:
        UsageError: the source is none.
        EngineError: a precision that PyTorch's own weights do not have.
    """
    if scheme == "torch":
        raise UsageError(
            "engine python serves models of transformers and timm, and a program of torch.export is neither",
            remedy="use --engine onnxruntime or tensorrt",
        )
    if scheme == "onnx":
        raise UsageError(
            "engine python serves a PyTorch model, and an ONNX file is none",
            remedy="use --engine onnxruntime, or name the model that the file was exported from (hf:…, timm:…)",
        )
    if spec.precision in {Precision.INT8, Precision.FP8, "auto"}:
        engine = EngineKind.TENSORRT if spec.precision is Precision.FP8 else EngineKind.ONNXRUNTIME
        raise EngineError(
            f"engine python serves the PyTorch model itself, which has no precision {spec.precision}",
            remedy=f"use --precision fp32, fp16 or bf16, or --engine {engine}",
        )


def build_model_folder(
    stages: StageRunner,
    spec: ModelSpec,
    reference: SourceReference,
    source: StepResult[SourceModel],
    onnx: StepResult[OnnxModel],
    lowered: StepResult[LoweredModel],
) -> StepResult[Engine] | None:
    """Package a model's configuration and weights with the code that Triton's Python backend starts.

    Args:
        stages: the compile's steps.
        spec: says how the model runs.
        reference: the source as typed.
        source: the model.
        onnx: says along which axes it was asked.
        lowered: says its interface and what it computes in.

    Raises:
        SourceError: pickled weights that cannot be read, or a model that changed meanwhile.
    """
    from plansmith.steps.worker import tasks

    files = [path.relative_to(source.folder).as_posix() for path in source.files]
    axes = onnx.record.every_axis()
    axes |= {tied.axis: axes[tied.to] for tied in onnx.record.tied}
    request = tasks.ModelFolderRequest(
        model=load_request(spec, source),
        files=tuple(files),
        # A user's own directory may be written to; files of the hub's cache, and of ours, never are.
        lasting=reference.path is None or spec.random_weights,
        lowered=lowered.record,
        axes=axes,
        torch_compile=spec.python.torch_compile,
        pipeline=spec.pipeline.around_one if spec.pipeline is not None else None,
        out=Path(),
    )
    parameters = request.model_dump(
        mode="json", exclude={"model": PLACE, "files": True, "lasting": True, "lowered": True, "out": True}
    )

    def build(out: Path) -> Engine:
        record = stages.run_in_worker(tasks.COMPILE_PYTHON, request.model_copy(update={"out": out}))
        require_unchanged(stages, spec, source)
        return record

    inputs = [source.digest, lowered.digest]
    return stages.stage("compile", Engine, inputs, parameters, build, tools="compile_python")
