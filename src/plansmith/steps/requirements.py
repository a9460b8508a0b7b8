"""What no later step could do, refused at once."""

from __future__ import annotations

from typing import Literal

from plansmith.config.source_reference import SourceReference
from plansmith.config.spec import ModelSpec
from plansmith.config.target.targets import Target
from plansmith.errors import EngineError, PlansmithError, UsageError
from plansmith.records.model import EngineKind, Precision
from plansmith.steps.compile_python import require_pytorch


def require_kernels(spec: ModelSpec, name: str, target: Target) -> None:
    """Refuse a precision that the engine has no kernels for where the target runs it.

    Raises:
        UsageError: it has none anywhere.
        EngineError: it has none on the target's GPUs.
    """
    remedy = "use --engine tensorrt, or --precision fp16"
    require_onnxruntime_kernels(spec.precision, spec.engine, model=name, remedy=remedy)
    lowers = spec.precision in {Precision.INT8, "auto"}
    if lowers and spec.engine is EngineKind.ONNXRUNTIME and target.device == "gpu":
        raise EngineError(
            f"precision {spec.precision} is for ONNX Runtime on a CPU, and {target.name} serves on a GPU, for which"
            " ONNX Runtime has no INT8 kernels",
            remedy="use --precision fp16, or a target for the CPU (plansmith targets)",
            model=name,
            step="lower",
        )


def require_onnxruntime_kernels(
    precision: Precision | Literal["auto"], engine: EngineKind, *, model: str, remedy: str
) -> None:
    """Refuse BF16 and FP8 for ONNX Runtime.

    Args:
        precision: of the graph.
        engine: that runs it.
        model: its name, for the message.
        remedy: what to type next.

    Raises:
        UsageError: the precision is one of them.
    """
    if engine is EngineKind.ONNXRUNTIME and precision in {Precision.BF16, Precision.FP8}:
        words = f"ONNX Runtime has no {precision.upper()} kernels for a CPU, where the release is checked"
        raise UsageError(words, remedy=remedy, model=model, step="lower")


def require_available(spec: ModelSpec, reference: SourceReference, name: str, target: Target) -> None:
    """Refuse at once what no later step could do."""
    if spec.engine is EngineKind.PYTHON:
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
