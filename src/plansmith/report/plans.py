"""TensorRT plan section of the report: builds, shapes and layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from plansmith import formatting
from plansmith.formatting import format_bytes, format_seconds
from plansmith.records.engine import Engine, LayerSummary, Plan, PlanLayer, PlanTensor, dtypes_of
from plansmith.records.model import InputRange
from plansmith.report import numbers
from plansmith.report.accuracy import CornerTable, SpeedTable, corner_tables, speed_table
from plansmith.report.text import BUILDERS, check_lines
from plansmith.report.verdict import ReportFacts

NOT_TOLD = "not told"


@dataclass(frozen=True)
class PlanFacts:
    """Facts of one plan: the GPU it was built on, and a term and text per known fact."""

    capability: str
    gpu: str
    ran: bool
    facts: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class ProfileRow:
    """Profile row: one range and the inputs that have it; the first row has the profile's name and its memory."""

    profile: str
    memory: str
    inputs: tuple[str, ...]
    least: str
    usual: str
    most: str


@dataclass(frozen=True)
class TensorRow:
    """Input or output of the plans."""

    name: str
    direction: str
    dtype: str
    dims: str
    format: str


@dataclass(frozen=True)
class LayerRow:
    """Notable layer of a plan."""

    name: str
    kind: str
    dtypes: str
    tactic: str
    time: str
    share: str


@dataclass(frozen=True)
class CountRow:
    """Layer count by kind and dtype; `bar`: their share of the time, or of the number if nothing was timed."""

    kind: str
    dtype: str
    count: str
    time: str
    bar: str


@dataclass(frozen=True)
class PlanLayers:
    """Layers of one plan; `above_more`: the number of unnamed layers with too high precision."""

    capability: str
    count: str
    time: str
    counts: tuple[CountRow, ...]
    above: tuple[LayerRow, ...]
    above_count: int
    above_more: int
    slowest: tuple[LayerRow, ...]
    file: str


@dataclass(frozen=True)
class PlanSection:
    """Plan section: everything about the plans of an engine.

    `check`: the build check by another library, if requested.
    """

    plans: tuple[PlanFacts, ...]
    profiles: tuple[ProfileRow, ...]
    flags: str
    tensors: tuple[TensorRow, ...]
    layers: tuple[PlanLayers, ...]
    corners: tuple[CornerTable, ...]
    speeds: tuple[SpeedTable, ...]
    several: bool
    limits_of: str
    ran: bool
    check: tuple[str, ...]


def plans_of(facts: ReportFacts) -> PlanSection | None:
    """Return the plan section of the page; None without plans."""
    engine, validation = facts.engine, facts.validation
    if engine is None or not engine.plans:
        return None
    ran = validation.ran if validation else ()
    named = validation.limits_of if validation else None
    timed = validation.layers if validation else {}
    return PlanSection(
        plans=tuple(_plan(capability, plan, ran=capability in ran) for capability, plan in engine.plans.items()),
        profiles=tuple(_profiles(engine)),
        flags=_flags(engine),
        tensors=tuple(dict.fromkeys(_tensor(t) for plan in engine.plans.values() for t in plan.tensors)),
        layers=tuple(
            _layers(capability, summary, plan.layers_file)
            for capability, plan in engine.plans.items()
            if (summary := timed.get(capability, plan.layer_summary)) is not None
        ),
        corners=tuple(corner_tables(validation)) if validation else (),
        speeds=tuple(map(speed_table, validation.speeds)) if validation else (),
        several=len(engine.plans) > 1,
        limits_of=named.upper() if named else "",
        ran=bool(ran),
        check=tuple(check_lines(engine.build_check)) if engine.build_check else (),
    )


def _plan(capability: str, plan: Plan, *, ran: bool) -> PlanFacts:
    peaks = (("Peak memory", plan.peak_host_bytes), ("Peak on the GPU", plan.peak_device_bytes))
    return PlanFacts(
        capability=capability,
        gpu=plan.gpu.name,
        ran=ran,
        facts=(
            ("TensorRT", plan.tensorrt),
            ("Size", format_bytes(plan.bytes)),
            ("Built in", f"{format_seconds(plan.seconds)} by {BUILDERS[plan.builder]}"),
            *((term, NOT_TOLD if count is None else format_bytes(count)) for term, count in peaks),
            ("Timing cache", plan.timing_cache),
            ("File", plan.file),
        ),
        warnings=plan.warnings,
    )


def _profiles(engine: Engine) -> Iterator[ProfileRow]:
    for place, profile in enumerate(engine.build.profiles if engine.build else ()):
        needs = {c: p.profile_bytes[place] for c, p in engine.plans.items() if place < len(p.profile_bytes)}
        memory = ", ".join(
            f"{format_bytes(count)}{f' ({capability})' if len(engine.plans) > 1 else ''}"
            for capability, count in needs.items()
        )
        sharing: dict[InputRange, list[str]] = {}
        for name, value_range in profile.shapes.items():
            sharing.setdefault(value_range, []).append(name)
        for name, value_range in profile.values.items():
            sharing.setdefault(value_range, []).append(f"contents of {name}")
        for number, (value_range, inputs) in enumerate(sharing.items()):
            least, usual, most = (numbers.shape(sizes) for sizes in (value_range.min, value_range.opt, value_range.max))
            title, needed = (profile.name, memory) if number == 0 else ("", "")
            yield ProfileRow(title, needed, tuple(inputs), least, usual, most)


def _flags(engine: Engine) -> str:
    """Return the build flags that were requested beyond the defaults."""
    if engine.build is None:
        return ""
    settings = engine.build.model_dump(mode="json", exclude={"profiles"}, exclude_defaults=True)
    return ", ".join(_flag(name.replace("_", " "), value) for name, value in settings.items())


def _flag(name: str, value: object) -> str:
    if isinstance(value, bool):
        return name if value else f"no {name}"
    if isinstance(value, dict):
        return ", ".join(f"{format_bytes(v) if isinstance(v, int) else v} for {k}" for k, v in value.items())
    return f"{name} {', '.join(map(str, value)) if isinstance(value, list) else value}"


def _tensor(tensor: PlanTensor) -> TensorRow:
    direction = f"{'input' if tensor.is_input else 'output'}{', holds a shape' if tensor.is_shape else ''}"
    dims = ", ".join("any" if dim < 0 else str(dim) for dim in tensor.dims)
    return TensorRow(tensor.name, direction, tensor.dtype, f"[{dims}]", tensor.format)


def _layers(capability: str, summary: LayerSummary, file: str) -> PlanLayers:
    return PlanLayers(
        capability=capability,
        count=formatting.count(summary.layers, "layer"),
        time="" if summary.milliseconds is None else numbers.milliseconds(summary.milliseconds),
        counts=tuple(
            CountRow(
                kind=row.kind,
                dtype=row.dtype,
                count=f"{row.count:,}",
                time="" if row.milliseconds is None else numbers.milliseconds(row.milliseconds),
                bar=numbers.width(row.milliseconds, summary.milliseconds)
                if summary.milliseconds
                else numbers.width(row.count, summary.layers),
            )
            for row in summary.counts
        ),
        above=tuple(_layer(layer, summary.milliseconds) for layer in summary.above),
        above_count=summary.above_count,
        above_more=summary.above_count - len(summary.above),
        slowest=tuple(_layer(layer, summary.milliseconds) for layer in summary.slowest),
        file=file,
    )


def _layer(layer: PlanLayer, whole: float | None) -> LayerRow:
    took = layer.milliseconds
    return LayerRow(
        name=layer.name,
        kind=layer.kind,
        dtypes=dtypes_of(layer),
        tactic=layer.tactic,
        time="" if took is None else numbers.milliseconds(took),
        share=numbers.percent(took / whole) if took is not None and whole else "",
    )
