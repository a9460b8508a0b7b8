"""Export in the worker: turns a source model into a graph and the reference outputs at many shapes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.compilers.export.loading import (
    ReferenceRunner,
    axes_of,
    axes_with_given_ranges,
    load,
    plan_graph,
    require_repeatable,
)
from plansmith.compilers.export.requests import ExportRequest, LoadRequest, ReferenceRequest
from plansmith.compilers.shape_inputs import shape_inputs
from plansmith.data.reference import REFERENCE
from plansmith.errors import UsageError
from plansmith.records.model import (
    BATCH,
    UNEXPORTED,
    AxisRange,
    Case,
    Component,
    FixedAxis,
    OnnxModel,
    Precision,
    ReferenceSet,
    Rounding,
)
from plansmith.sources.loaded_model import require_memory
from plansmith.system.tasks import Progress

if TYPE_CHECKING:
    from plansmith.compilers.export.exporters import ExportJob
    from plansmith.sources.dynamic_axes import DynamicAxes
    from plansmith.sources.loaded_model import InputPlan, LoadedModel, Signature


_GRAPH = "graph"
_PROBES: tuple[str, ...] = ("traced", "single", "untraced", "min")


@dataclass(frozen=True)
class _SettledModel:
    """A model ready to run, and the dynamic axes to run it along.

    Args:
        live: the model.
        asking: keeps its answers.
        dynamic_axes: which axes move.
        axes: their ranges.
        explicit_axes: those whose range a person gave.
    """

    live: LoadedModel
    asking: ReferenceRunner
    dynamic_axes: DynamicAxes
    axes: dict[str, AxisRange]
    explicit_axes: set[str]


def export(request: ExportRequest, progress: Progress) -> OnnxModel:
    """Load the model, find its dynamic axes, export a graph that matches it, and store its outputs."""
    from plansmith.compilers.export import exporters, torch_export
    from plansmith.sources import dynamic_axes

    settled = _settled(request, progress)
    live, out = settled.live, request.out
    plan, asking, axes, moving_axes = live.inputs, settled.asking, settled.axes, settled.dynamic_axes

    def job(fixed: Sequence[str]) -> ExportJob:
        without = moving_axes.without({axis: axes[axis].opt for axis in fixed})
        left = {a: r for a, r in axes.items() if a not in fixed}
        return replace(_job(live, without, asking, left, out), opset=min(torch_export.OPSET, request.max_opset))

    first = job(())
    rounded = exporters.measure(first)
    with live.exportable():
        exported = torch_export.export(
            replace(first, rounding=rounded),
            progress,
            optional=()
            if plan.guessed
            else dynamic_axes.least_needed_first(a for a in axes if not _is_wanted(a, axes, settled.explicit_axes)),
            with_fixed=lambda fixed: replace(job(fixed), rounding=rounded),
        )
    _bring_up(out / _GRAPH)
    given_up = [
        FixedAxis(axis=axis, size=axes[axis].opt, by="exporters", reason=why) for axis, why in exported.given_up.items()
    ]
    left = moving_axes.without({entry.axis: entry.size for entry in given_up})
    return OnnxModel(
        components={"model": exported.component},
        axes={axis: r for axis, r in axes.items() if axis in left.plan.axes},
        mask_input=plan.mask_input,
        exporter=exported.attempts[-1].exporter,
        attempts=exported.attempts,
        precision=Precision.FP32,
        reference=_reference(replace(settled, dynamic_axes=left), rounded, out),
        fixed=(*left.fixed, *given_up),
        tied=left.tied,
    )


def run_reference(request: ReferenceRequest, progress: Progress) -> OnnxModel:
    """As `export`, for a model served as it is: store its axes, interface and outputs, without a graph."""
    from plansmith.compilers.export import exporters

    settled = _settled(request, progress)
    moving_axes = settled.dynamic_axes
    job = _job(settled.live, moving_axes, settled.asking, settled.axes, request.out)
    job.folder.rmdir()
    component = Component(file="", external_files=(), inputs=job.inputs, outputs=job.outputs, opset=0, ir_version=0)
    return OnnxModel(
        components={"model": component},
        axes=settled.axes,
        mask_input=moving_axes.plan.mask_input,
        exporter=UNEXPORTED,
        attempts=(),
        precision=Precision.FP32,
        reference=_reference(settled, exporters.measure(job), request.out),
        fixed=moving_axes.fixed,
        tied=moving_axes.tied,
    )


def _settled(request: ReferenceRequest, progress: Progress) -> _SettledModel:
    """Load the model, find its dynamic axes and narrow their ranges; require repeatable outputs."""
    from plansmith.sources import dynamic_axes

    require_memory(request.model.folder)
    progress("loading the model")
    live = load(request.model).on(request.model.device)
    plan, shapes = live.inputs, request.shapes
    axes, user_axes = axes_of(plan, shapes), axes_with_given_ranges(plan, shapes)
    asking = ReferenceRunner(live.ask, plan, axes, progress)
    progress("finding the axes that move")
    moving_axes = dynamic_axes.find_dynamic_axes(asking.answer, plan, axes, user_axes)
    _require_moving(moving_axes, axes, user_axes)
    axes = dynamic_axes.narrow_ranges(asking.answer, moving_axes, axes, user_axes)
    require_repeatable(live.ask, *asking.smallest_case(moving_axes.full(moving_axes.traced)))
    return _SettledModel(live, asking, moving_axes, axes, user_axes)


def _reference(settled: _SettledModel, rounded: dict[str, Rounding], out: Path) -> ReferenceSet:
    """Store the reference: the model's outputs along the remaining dynamic axes."""
    import torch

    plan, device = settled.live.inputs, settled.live.device
    axes = {axis: r for axis, r in settled.axes.items() if axis in settled.dynamic_axes.plan.axes}
    return ReferenceSet(
        runtime=f"PyTorch {torch.__version__}, FP32{'' if device == 'cpu' else f' on {device}'}",
        data=plan.data,
        cases=_stored(settled.asking, settled.dynamic_axes, axes, out / REFERENCE),
        guessed=plan.drawn,
        rounding=rounded,
    )


def _job(
    live: LoadedModel, moving_axes: DynamicAxes, asking: ReferenceRunner, axes: Mapping[str, AxisRange], out: Path
) -> ExportJob:
    """The export job with the remaining dynamic axes, compared at the shapes that reveal most for their cost.

    Those are the first ones, the smallest, and the longest single sample: many graphs are wrong only there.
    """
    from plansmith.compilers.export import exporters, torch_export
    from plansmith.compilers.export.exporters import alike, mixes_experts
    from plansmith.data.reference import odd_sizes, plan_cases

    planned: dict[str, dict[str, int]] = dict(
        plan_cases(axes, moving_axes.able, (moving_axes.traced, moving_axes.untraced))
    )
    shapes = {name: planned[name] for name in _PROBES if name in planned}
    longest = {axis: r.min if axis == BATCH else r.max for axis, r in axes.items()}
    if longest not in planned.values():
        shapes["longest"] = longest
    odd = odd_sizes(moving_axes.able, moving_axes.untraced)
    if odd not in shapes.values() and asking.takes(moving_axes.full(odd)):
        shapes[torch_export.ODD] = odd
    probes = [
        exporters.Probe(name, sizes, *asking.cached_case(name, moving_axes.full(sizes)))
        for name, sizes in shapes.items()
    ]
    same = alike(probes[0], live.ask) if mixes_experts(live.module) else None
    probes += [same] if same else []
    folder = out / _GRAPH
    folder.mkdir(exist_ok=True)
    return exporters.ExportJob(
        module=live.module,
        inputs=moving_axes.plan.tensors,
        outputs=torch_export.output_tensors(live.output_names, probes),
        probes=probes,
        mask_input=moving_axes.plan.mask_input,
        opset=torch_export.OPSET,
        folder=folder,
        device=live.device,
    )


def _stored(
    asking: ReferenceRunner, moving_axes: DynamicAxes, axes: Mapping[str, AxisRange], folder: Path
) -> tuple[Case, ...]:
    """Run the model at every shape used in comparisons, and store its outputs."""
    from plansmith.data.reference import is_inside, plan_cases, store_case

    cases = []
    for name, sizes in plan_cases(axes, moving_axes.able, (moving_axes.traced, moving_axes.untraced)):
        feed, answer = asking.case(name, moving_axes.full(sizes))
        cases.append(store_case(name, sizes, feed, answer, folder, in_range=is_inside(sizes, axes)))
    return tuple(cases)


def _bring_up(folder: Path) -> None:
    """Move the files of a folder to its parent."""
    for file in folder.iterdir():
        file.rename(folder.parent / file.name)
    folder.rmdir()


def _is_wanted(axis: str, axes: Mapping[str, AxisRange], user_axes: Collection[str]) -> bool:
    """Whether the user requested an axis to be dynamic."""
    return axis in user_axes and axes[axis].min < axes[axis].max


def _require_moving(moving_axes: DynamicAxes, axes: Mapping[str, AxisRange], user_axes: Collection[str]) -> None:
    """Refuse a dynamic axis or a size that the user requested and the model does not support.

    Raises:
        UsageError: somebody did.
    """
    for pair in moving_axes.tied:
        if pair.axis in user_axes and axes[pair.axis] != axes[pair.to]:
            raise UsageError(
                f"shapes: {pair.axis!r} and {pair.to!r} are one for this model: {pair.reason}",
                remedy="give both the same sizes",
            )
    for fixed_axis in moving_axes.fixed:
        r = axes[fixed_axis.axis]
        if fixed_axis.axis in user_axes and {r.min, r.opt, r.max} != {fixed_axis.size}:
            demand = "move" if r.min < r.max else f"be {r.opt}"
            raise UsageError(
                f"shapes: {fixed_axis.axis!r} is to {demand}, and the model takes"
                f" {fixed_axis.size} only: {fixed_axis.reason}",
                remedy=f"write {fixed_axis.size} for it in min, opt and max",
            )


def describe(request: LoadRequest, progress: Progress) -> Signature:
    """Load the model and return its inputs, outputs, axes and limits."""
    progress("loading the model")
    if request.scheme == "onnx":
        model, plan = plan_graph(Path(request.location), request.inputs, request.outputs)
        signature = plan.signature([output.name for output in model.graph.output])
        return signature.model_copy(update={"shape_inputs": shape_inputs(model)})
    live = load(request)
    return _with_found_axes(live, progress).signature(live.output_names)


def _with_found_axes(live: LoadedModel, progress: Progress) -> InputPlan:
    """The input plan without the dynamic axes and sizes that the model does not support."""
    from plansmith.sources import dynamic_axes

    asking = ReferenceRunner(live.ask, live.inputs, live.inputs.axes, progress)
    moving_axes = dynamic_axes.find_dynamic_axes(asking.answer, live.inputs, live.inputs.axes)
    return replace(moving_axes.plan, axes=dynamic_axes.narrow_ranges(asking.answer, moving_axes, live.inputs.axes, ()))
