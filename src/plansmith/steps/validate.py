"""The step that holds an engine against the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.config.spec import ModelSpec
from plansmith.records.engine import Engine
from plansmith.records.model import DataSet, EngineKind, LoweredModel, OnnxModel
from plansmith.records.validation import ValidationReport
from plansmith.steps.runner import Finished, StageRunner
from plansmith.validation.held_out import HeldOut


@dataclass(frozen=True)
class Judged:
    """An engine, and what it is judged by."""

    engine: Finished[Engine]
    onnx: Finished[OnnxModel]
    lowered: Finished[LoweredModel]
    data: Finished[DataSet] | None


def judge_engine(
    stages: StageRunner,
    spec: ModelSpec,
    judged: Judged,
    *,
    require: Callable[[ValidationReport], None],
) -> Finished[ValidationReport]:
    """Hold an engine against the reference, at every shape and on the held-out samples.

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

    def build(_: Path) -> Any:
        return stages.heavy(
            "validate",
            engine=engine.record.model_dump(mode="json"),
            engine_folder=str(engine.folder),
            onnx=onnx.record.model_dump(mode="json"),
            reference_folder=str(onnx.folder),
            held_out=held_out.model_dump(mode="json") if held_out else None,
            recipe=recipe.model_dump(mode="json") if recipe else None,
            runnable=str(lowered.folder / runnable) if runnable else "",
            tolerances=parameters["tolerances"],
        )

    inputs = [engine.digest, onnx.digest, lowered.digest, *([data.digest] if data else [])]
    tools = "validate_python" if spec.engine is EngineKind.PYTHON else ""
    return stages.stage("validate", ValidationReport, inputs, parameters, build, require=require, tools=tools)
