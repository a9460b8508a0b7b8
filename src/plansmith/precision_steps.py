"""The steps that decide and judge precision, as the light parent sees them: sample, lower, validate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith import toolchain
from plansmith.compilers.precision.speed import machine
from plansmith.config import ModelSpec
from plansmith.data.reading import DataPlace
from plansmith.data_spec import DataSpec
from plansmith.engines import Engine
from plansmith.errors import ExportError, GateError
from plansmith.fetching import require_unchanged
from plansmith.held_out import HeldOut
from plansmith.lowering_options import LoweringRequest
from plansmith.precision_words import choice_words
from plansmith.reports import ValidationReport
from plansmith.sources.data_places import find_data, require_data_unchanged
from plansmith.stages import Finished, StageRunner, WouldRun
from plansmith.types import DataSet, Device, EngineKind, LoweredModel, OnnxModel, Precision, SourceModel

_NOT_SAMPLED = {"path", "dataset", "subset", "split", "max_metric_drop"}
"""What a spec says of data that makes no other samples: where they come from stands in their place, by digest."""


@dataclass(frozen=True)
class Judged:
    """An engine, and what it is judged by."""

    engine: Finished[Engine]
    onnx: Finished[OnnxModel]
    lowered: Finished[LoweredModel]
    data: Finished[DataSet] | None


def may_need_samples(spec: ModelSpec) -> bool:
    """Whether a compile takes samples, as far as is known before the graph is there; PyTorch calibrates nothing."""
    lowers = spec.precision is not Precision.FP32 and spec.engine is not EngineKind.PYTHON
    return spec.data is not None or lowers


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
            model=spec.name,
            step="lower",
        )
    return spec.data is not None


def take_samples(
    stages: StageRunner,
    spec: ModelSpec,
    relative_to: Path,
    source: Finished[SourceModel],
    onnx: Finished[OnnxModel],
) -> Finished[DataSet]:
    """Make samples into inputs, in two sets that share none, and ask the source model about them.

    Args:
        stages: the compile's steps.
        spec: says where the data are; without data, inputs of plansmith's own are taken, for calibration alone.
        relative_to: the folder that the path of data starts from.
        source: the model.
        onnx: what was exported of it.

    Raises:
        SourceError: the data cannot be read, or changed while they were.
        UsageError: there are too few, or columns, labels or inputs that are not there.
    """
    asked: dict[str, Any] = {
        "inputs": {k: v.model_dump() for k, v in spec.inputs.items()},
        "outputs": spec.outputs,
        "allow_pickle": spec.allow_pickle,
        "axes": {axis: r.model_dump() for axis, r in onnx.record.every_axis().items()}
        | {one.axis: one.to for one in onnx.record.tied},
    }
    model = source.record.model_dump(include={"scheme", "trust_remote_code", "task"}) | {"device": spec.device}
    with stages.timed("sample") as clock:
        place = _find_data(stages, spec.data, relative_to) if spec.data else None
        # Digests tell what lies where; limits are the gate's.
        parameters = {
            **asked,
            "source": model,
            "data": spec.data.model_dump(mode="json", exclude=_NOT_SAMPLED) if spec.data else None,
            "place": place.model_dump(mode="json", exclude={"folder"}) if place else None,
        }

        def build(out: Path) -> Any:
            record = stages.heavy(
                "sample",
                source={**model, "location": source.record.location},
                folder=str(source.folder),
                data=spec.data.model_dump(mode="json") if spec.data else None,
                place=place.model_dump(mode="json") if place else None,
                out=str(out),
                **asked,
            )
            require_unchanged(stages, spec, source)
            if place is not None:
                require_data_unchanged(place, stages.digester)
            return record

        entry, clock.cached = stages.entry("sample", [source.digest, onnx.digest], parameters, build)
        stages.made["sample"] = record = DataSet.model_validate(entry.record)
    if not record.real:
        stages.notice(f"calibrated on {record.words}; --data, or `data` in a spec, names real ones")
    return Finished(record, entry.folder, entry.digest, clock.cached)


def _find_data(stages: StageRunner, spec: DataSpec, relative_to: Path) -> DataPlace:
    place = find_data(
        spec, relative_to=relative_to, digester=stages.digester, offline=stages.dry, progress=stages.progress
    )
    if place.kind != "entry_point":
        return place
    if stages.dry:
        raise WouldRun("sample")
    found = stages.heavy("entry_point_digest", entry_point=spec.entry_point, place=place.model_dump(mode="json"))
    return place.model_copy(update={"digest": found["digest"]})


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
    if autocast and spec.precision is not Precision.INT8:
        found["autocast"] = toolchain.environment(autocast)
    return found


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
        require: raises where the verdict is "failed"; see `validation.require_passed`.
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
