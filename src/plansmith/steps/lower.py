"""Precision steps in the driver: sample, lower, validate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from plansmith.config.engine_options import LoweringRequest
from plansmith.config.spec import ModelSpec
from plansmith.config.targets import Target
from plansmith.errors import EngineError, ExportError, GateError, UsageError
from plansmith.formatting import count
from plansmith.records.model import DataSet, Device, EngineKind, LoweredModel, OnnxModel, Precision
from plansmith.report.text import describe_choice
from plansmith.steps.runner import StageRunner, StepResult

if TYPE_CHECKING:
    from plansmith.compilers.precision.requests import LintWarnings


def lower_graph(
    stages: StageRunner,
    spec: ModelSpec,
    onnx: StepResult[OnnxModel],
    data: StepResult[DataSet] | None,
    *,
    device: Device,
    require: Callable[[LoweredModel], None],
) -> StepResult[LoweredModel] | None:
    """Lower a graph's precision; a graph that already has it passes through.

    Args:
        stages: the compile's steps.
        spec: says what to lower it to, and how.
        onnx: the exported graph.
        data: samples; None where none are needed.
        device: what the target runs it on.
        require: raises where the search found nothing; see `require_lowered`.

    Raises:
        ExportError: nothing in the graph can be lowered.
        UsageError: the file came in a precision that the engine has no kernels for.
        GateError: no recipe is accurate enough.
    """
    if spec.engine is EngineKind.PYTHON:
        return _as_cast(stages, spec, onnx)
    if data is None or spec.precision in {Precision.FP32, onnx.record.precision}:
        return _as_it_is(stages, spec, onnx, data)
    lowering_request = LoweringRequest(
        precision=spec.precision,
        engine=spec.engine,
        device=device,
        options=spec.lowering,
        tolerances=spec.tolerances,
        max_metric_drop=spec.data.max_metric_drop if spec.data else None,
    )

    def build(out: Path) -> LoweredModel:
        from plansmith.compilers.precision.requests import LowerRequest
        from plansmith.steps.worker import tasks

        request = LowerRequest(
            onnx=onnx.record,
            folder=onnx.folder,
            data=data.record,
            data_folder=data.folder,
            request=lowering_request,
            out=out,
        )
        return stages.run_in_worker(tasks.LOWER, request)

    parameters = {"request": lowering_request.model_dump(mode="json"), **_surroundings(spec)}
    inputs = [onnx.digest, data.digest]
    lowered = stages.stage("lower", LoweredModel, inputs, parameters, build, require=require)
    if lowered is None:
        return None
    if spec.precision == "auto":
        stages.notice(describe_choice(lowered.record))
    chosen = next((trial for trial in lowered.record.trials if trial.chosen), None)
    if chosen is not None and chosen.speed is not None and chosen.speed.verdict == "slower":
        times = f"{chosen.speed.ratio:.2f} times as fast ({chosen.speed.setting})"
        stages.notice(f"{chosen.precision} is slower than FP32 here: {times}; --precision auto would not take it")
    return lowered


def _surroundings(spec: ModelSpec) -> dict[str, Any]:
    """Return what a lowering depends on in addition to its settings."""
    for_onnxruntime = spec.precision is Precision.INT8 and spec.engine is EngineKind.ONNXRUNTIME
    if spec.precision != "auto" and not for_onnxruntime:
        return {}
    from plansmith.compilers.precision.benchmark import machine

    # What is fastest, and how many bits a product of bytes may have, is this machine's to say.
    return {"machine": machine()}


def require_lowered(record: LoweredModel, *, budget: int) -> None:
    """Require that a record holds a graph.

    Args:
        record: of the lowering.
        budget: how many recipes the repair could try, which matters only where it used them up.

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
    lowered = [layer for layer in record.layers if layer.lowered]
    worst = min(lowered, key=lambda layer: layer.sqnr_db).node if lowered else "NODE"
    ways = [
        f"keep nodes in FP32 (the least accurate one: `lowering: {{keep: [{worst}]}}`)",
        *(["raise `lowering: budget`"] if len(record.trials) > budget else []),
        "use --precision auto",
        "allow more in the spec (`tolerances` of an output, `max_metric_drop` under `data`)",
    ]
    raise GateError(
        f"none of {len(record.trials)} {record.precision} recipes is accurate enough on the calibration data; the"
        f" nearest to FP32, {best.name}: {best.problem}",
        remedy=f"nothing was published; {', '.join(ways[:-1])}, or {ways[-1]}",
    )


def _as_cast(stages: StageRunner, spec: ModelSpec, onnx: StepResult[OnnxModel]) -> StepResult[LoweredModel]:
    """Return a result without a lowered graph: PyTorch casts the model's own weights when it loads them."""
    assert spec.precision != "auto"
    with stages.timed("lower") as clock:
        clock.cached = onnx.cached
        record = LoweredModel(
            components=onnx.record.components, precision=spec.precision, recipe=None, trials=(), layers=()
        )
        return StepResult(record, onnx.folder, onnx.digest, clock.cached)


def _as_it_is(
    stages: StageRunner, spec: ModelSpec, onnx: StepResult[OnnxModel], data: StepResult[DataSet] | None
) -> StepResult[LoweredModel] | None:
    with stages.timed("lower") as clock:
        clock.cached = onnx.cached
        precision = onnx.record.precision
        record = LoweredModel(components=onnx.record.components, precision=precision, recipe=None, trials=(), layers=())
        if precision is not Precision.FP32:
            require_onnxruntime_kernels(precision, spec.engine, model=spec.name, remedy="use --engine tensorrt")
            checked = _check_prelowered(stages, spec, onnx, data)
            if checked is None:
                clock.is_missing = True
                return None
            warnings, clock.cached = checked
            stages.results["lower"] = record = record.model_copy(update={"warnings": warnings})
            if precision is not spec.precision:
                stages.notice(f"the file is {precision} already, and stays so")
        return StepResult(record, onnx.folder, onnx.digest, clock.cached)


def _check_prelowered(
    stages: StageRunner, spec: ModelSpec, onnx: StepResult[OnnxModel], data: StepResult[DataSet] | None
) -> tuple[tuple[str, ...], bool] | None:
    """Check a prelowered graph for errors; return the warnings, and whether they were cached."""
    parameters: dict[str, Any] = {"engine": spec.engine, "accepted": list(spec.lowering.accept)}

    def build(_: Path) -> LintWarnings:
        from plansmith.compilers.precision.requests import PrelowerCheckRequest
        from plansmith.steps.worker import tasks

        request = PrelowerCheckRequest(
            onnx=onnx.record,
            folder=onnx.folder,
            data=data.record if data else None,
            data_folder=data.folder if data else Path(),
            engine=spec.engine,
            accepted=spec.lowering.accept,
        )
        return stages.run_in_worker(tasks.CHECK_PRELOWERED, request)

    inputs = [onnx.digest, *([data.digest] if data else [])]
    result = stages.entry("lower", inputs, {"of": "check_prelowered", **parameters}, build)
    if result is None:
        return None
    entry, cached = result
    warnings = tuple(entry.record["warnings"])
    if warnings:
        stages.notice(f"{count(len(warnings), 'warning')} about the lowering of the file; the first: {warnings[0]}")
    return warnings, cached


def require_kernels(spec: ModelSpec, name: str, target: Target) -> None:
    """Refuse a precision that the engine has no kernels for on the target.

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
        message = f"ONNX Runtime has no {precision.upper()} kernels for a CPU, where the release is checked"
        raise UsageError(message, remedy=remedy, model=model, step="lower")
