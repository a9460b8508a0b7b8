"""The steps that decide and judge precision, as the light parent sees them: sample, lower, validate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from plansmith.compilers.precision.benchmark import machine
from plansmith.config.precision import LoweringRequest
from plansmith.config.spec import ModelSpec
from plansmith.errors import ExportError, GateError
from plansmith.records.model import DataSet, Device, EngineKind, LoweredModel, OnnxModel, Precision
from plansmith.report.text.precision import choice_words
from plansmith.steps.cache import toolchain
from plansmith.steps.requirements import require_onnxruntime_kernels
from plansmith.steps.runner import Finished, StageRunner


def lower_graph(
    stages: StageRunner,
    spec: ModelSpec,
    relative_to: Path,
    onnx: Finished[OnnxModel],
    data: Finished[DataSet] | None,
    *,
    device: Device,
    require: Callable[[LoweredModel], None],
) -> Finished[LoweredModel]:
    """Lower a graph's precision; one that has the precision already passes through.

    Args:
        stages: the compile's steps.
        spec: says what to lower it to, and how.
        relative_to: the folder that paths in it start from.
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
    request = LoweringRequest(
        precision=spec.precision,
        engine=spec.engine,
        device=device,
        options=spec.lowering.found_from(relative_to),
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

    parameters = {"request": request, **_surroundings(spec, request["options"]["autocast"])}
    inputs = [onnx.digest, data.digest]
    lowered = stages.stage("lower", LoweredModel, inputs, parameters, build, require=require)
    if spec.precision == "auto":
        stages.notice(choice_words(lowered.record))
    chosen = next((trial for trial in lowered.record.trials if trial.chosen), None)
    if chosen is not None and chosen.speed is not None and chosen.speed.verdict == "slower":
        times = f"{chosen.speed.ratio:.2f} times as fast ({chosen.speed.setting})"
        stages.notice(f"{chosen.precision} is slower than FP32 here: {times}; --precision auto would not take it")
    return lowered


def _surroundings(spec: ModelSpec, autocast: str) -> dict[str, Any]:
    """What a lowering depends on besides what was asked for."""
    found: dict[str, Any] = {}
    for_onnxruntime = spec.precision is Precision.INT8 and spec.engine is EngineKind.ONNXRUNTIME
    if spec.precision == "auto" or for_onnxruntime:
        # What is fastest, and how many bits a product of bytes may have, is this machine's to say.
        found["machine"] = machine()
    if autocast and spec.precision not in {Precision.INT8, Precision.FP8}:
        found["autocast"] = toolchain.environment(autocast)
    return found


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
        f"none of {len(record.trials)} {record.precision} recipes is accurate enough on the calibration data; the"
        f" nearest to FP32, {best.name}: {best.problem}",
        remedy="nothing was published; use --precision auto, raise `lowering: budget`, or allow more in the spec"
        " (`tolerances` of an output, `max_metric_drop` under `data`)",
    )


def _as_cast(stages: StageRunner, spec: ModelSpec, onnx: Finished[OnnxModel]) -> Finished[LoweredModel]:
    """No graph to lower: PyTorch casts the model's own weights where it is loaded."""
    assert spec.precision != "auto"
    with stages.timed("lower") as clock:
        clock.cached = onnx.cached
        record = LoweredModel(
            components=onnx.record.components, precision=spec.precision, recipe=None, trials=(), layers=()
        )
        return Finished(record, onnx.folder, onnx.digest, clock.cached)


def _as_it_is(
    stages: StageRunner, spec: ModelSpec, onnx: Finished[OnnxModel], data: Finished[DataSet] | None
) -> Finished[LoweredModel]:
    with stages.timed("lower") as clock:
        clock.cached = onnx.cached
        precision = onnx.record.precision
        record = LoweredModel(components=onnx.record.components, precision=precision, recipe=None, trials=(), layers=())
        if precision is not Precision.FP32:
            require_onnxruntime_kernels(precision, spec.engine, model=spec.name, remedy="use --engine tensorrt")
            warnings, clock.cached = _check_given(stages, spec, onnx, data)
            stages.made["lower"] = record = record.model_copy(update={"warnings": warnings})
            if precision is not spec.precision:
                stages.notice(f"the file is {precision} already, and stays so")
        return Finished(record, onnx.folder, onnx.digest, clock.cached)


def _check_given(
    stages: StageRunner, spec: ModelSpec, onnx: Finished[OnnxModel], data: Finished[DataSet] | None
) -> tuple[tuple[str, ...], bool]:
    """See that a graph that came lowered has no mistakes in it: the warnings, and whether they were known."""
    parameters: dict[str, Any] = {"engine": spec.engine, "accepted": list(spec.lowering.accept)}

    def build(_: Path) -> Any:
        return stages.heavy(
            "check_given",
            onnx=onnx.record.model_dump(mode="json"),
            folder=str(onnx.folder),
            data=data.record.model_dump(mode="json") if data else None,
            data_folder=str(data.folder) if data else "",
            **parameters,
        )

    inputs = [onnx.digest, *([data.digest] if data else [])]
    entry, cached = stages.entry("lower", inputs, {"of": "check_given", **parameters}, build)
    warnings = tuple(entry.record["warnings"])
    if warnings:
        stages.notice(f"{len(warnings)} doubtful thing(s) in the lowering of the file; the first: {warnings[0]}")
    return warnings, cached
