"""Validate step: compares an engine with the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.config.spec import ModelSpec
from plansmith.records.engine import Engine
from plansmith.records.model import DataSet, EngineKind, LoweredModel, OnnxModel
from plansmith.records.validation import ValidationReport
from plansmith.steps.runner import StageRunner, StepResult
from plansmith.validation.verdict import HeldOut


@dataclass(frozen=True)
class ValidationInputs:
    """An engine, and the inputs of its validation."""

    engine: StepResult[Engine]
    onnx: StepResult[OnnxModel]
    lowered: StepResult[LoweredModel]
    data: StepResult[DataSet] | None


def validate_engine(
    stages: StageRunner,
    spec: ModelSpec,
    judged: ValidationInputs,
    *,
    require: Callable[[ValidationReport], None],
) -> StepResult[ValidationReport] | None:
    """Compare an engine with the reference, at every shape and on the held-out samples.

    Args:
        stages: the compile's steps.
        spec: says what is allowed.
        judged: the engine, and what it is judged by.
        require: raises where the verdict is "failed"; see `gate.require_passed`.
    """
    engine, onnx, lowered, data = judged.engine, judged.onnx, judged.lowered, judged.data
    runnable, recipe = lowered.record.runnable, lowered.record.recipe
    parameters: dict[str, Any] = {
        "tolerances": {k: v.model_dump(exclude_none=True) for k, v in spec.tolerances.items()},
        "max_metric_drop": spec.data.max_metric_drop if spec.data else None,
    }

    held_out = (
        HeldOut(data=data.record, folder=data.folder, max_metric_drop=parameters["max_metric_drop"]) if data else None
    )

    def build(_: Path) -> ValidationReport:
        from plansmith.steps.worker import tasks

        request = tasks.ValidateRequest(
            engine=engine.record,
            engine_folder=engine.folder,
            onnx=onnx.record,
            reference_folder=onnx.folder,
            tolerances=spec.tolerances,
            held_out=held_out,
            recipe=recipe,
            runnable=lowered.folder / runnable if runnable else None,
        )
        return stages.run_in_worker(tasks.VALIDATE, request)

    inputs = [engine.digest, onnx.digest, lowered.digest, *([data.digest] if data else [])]
    tools = "validate_python" if spec.engine is EngineKind.PYTHON else ""
    return stages.stage("validate", ValidationReport, inputs, parameters, build, require=require, tools=tools)
