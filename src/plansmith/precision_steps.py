"""The steps that decide and judge precision, as the light parent sees them: sample, lower, validate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from plansmith.config import ModelSpec
from plansmith.errors import ExportError, GateError
from plansmith.lowering_options import LoweringRequest
from plansmith.reports import ValidationReport
from plansmith.stages import Finished, StageRunner
from plansmith.types import DataSet, Engine, LoweredModel, OnnxModel, Precision
from plansmith.validation import require_passed


def may_need_samples(spec: ModelSpec) -> bool:
    """Whether a compile takes samples, as far as is known before the graph is there."""
    return spec.data is not None or spec.precision is not Precision.FP32


def needs_samples(spec: ModelSpec, onnx: OnnxModel) -> bool:
    """Whether a compile takes samples: somebody gave data to judge by, or the lowering has to see some.

    Raises:
        ExportError: the graph came in another lowered precision than the one that is asked for.
    """
    if onnx.precision is Precision.FP32:
        return may_need_samples(spec)
    if spec.precision not in {Precision.FP32, onnx.precision}:
        raise ExportError(
            f"the file is {onnx.precision} already, and a lowering to {spec.precision} starts from FP32",
            remedy=f"export it in FP32, or leave --precision out and keep {onnx.precision}",
            step="lower",
        )
    return spec.data is not None


def lower_graph(
    stages: StageRunner, spec: ModelSpec, onnx: Finished[OnnxModel], data: Finished[DataSet] | None
) -> Finished[LoweredModel]:
    """Lower a graph's precision; one that has the precision already passes through.

    Raises:
        ExportError: nothing in the graph can be lowered.
        GateError: no recipe is accurate enough.
    """
    if data is None or spec.precision in {Precision.FP32, onnx.record.precision}:
        return _as_it_is(stages, spec, onnx)
    request = LoweringRequest(
        precision=spec.precision,
        engine=spec.engine,
        options=spec.lowering,
        tolerances=spec.tolerances,
        max_metric_drop=spec.data.max_metric_drop if spec.data else None,
    ).model_dump(mode="json")

    def build(out: Path) -> Any:
        return stages.heavy(
            "lower",
            onnx=onnx.record.model_dump(mode="json"),
            folder=str(onnx.folder),
            data=data.record.model_dump(mode="json"),
            data_folder=str(data.folder),
            request=request,
            out=str(out),
        )

    return stages.stage("lower", LoweredModel, [onnx.digest, data.digest], request, build, require=require_lowered)


def judge_engine(
    stages: StageRunner,
    spec: ModelSpec,
    engine: Finished[Engine],
    onnx: Finished[OnnxModel],
    lowered: Finished[LoweredModel],
    data: Finished[DataSet] | None,
    *,
    require: Callable[[ValidationReport], None] = require_passed,
) -> Finished[ValidationReport]:
    """Hold an engine against the reference, at every shape and on the held-out samples.

    Raises:
        GateError: the verdict is "failed".
    """
    runnable, recipe = lowered.record.runnable, lowered.record.recipe
    parameters: dict[str, Any] = {
        "tolerances": {k: v.model_dump(exclude_none=True) for k, v in spec.tolerances.items()},
        "max_metric_drop": spec.data.max_metric_drop if spec.data else None,
    }

    def build(_: Path) -> Any:
        return stages.heavy(
            "validate",
            engine=engine.record.model_dump(mode="json"),
            engine_folder=str(engine.folder),
            onnx=onnx.record.model_dump(mode="json"),
            reference_folder=str(onnx.folder),
            data=data.record.model_dump(mode="json") if data else None,
            data_folder=str(data.folder) if data else None,
            recipe=recipe.model_dump(mode="json") if recipe else None,
            runnable=str(lowered.folder / runnable) if runnable else None,
            **parameters,
        )

    inputs = [engine.digest, onnx.digest, lowered.digest, *([data.digest] if data else [])]
    return stages.stage("validate", ValidationReport, inputs, parameters, build, require=require)


def require_lowered(record: LoweredModel) -> None:
    """Let a record through that holds a graph.

    Raises:
        ExportError: nothing in the graph can be lowered.
        GateError: no recipe was accurate enough.
    """
    if record.components:
        return
    if not record.trials:
        raise ExportError(
            f"nothing in this graph can be lowered to {record.precision}",
            remedy="use --precision fp32, or let go of nodes in `lowering: keep`",
        )
    best = max(record.trials, key=lambda trial: trial.score)
    raise GateError(
        f"none of {len(record.trials)} {record.precision} recipes is accurate enough on the calibration data; the best,"
        f" {best.name}: {best.problem}",
        remedy="nothing was published; use --precision auto, raise `lowering: budget`, or set `tolerances` in the spec",
    )


def _as_it_is(stages: StageRunner, spec: ModelSpec, onnx: Finished[OnnxModel]) -> Finished[LoweredModel]:
    with stages.timed("lower") as clock:
        clock.cached = onnx.cached
        precision = onnx.record.precision
        if precision is not spec.precision:
            stages.notice(f"the file is {precision} already, and stays so")
        record = LoweredModel(components=onnx.record.components, precision=precision, recipe=None, trials=(), layers=())
        return Finished(record, onnx.folder, onnx.digest, onnx.cached)
