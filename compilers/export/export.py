"""Export, in the worker: a source model becomes a graph and the reference's answers at many shapes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.compilers.export.loading import axes_of, axes_with_given_ranges, load, plan_graph
from plansmith.compilers.export.model_calls import Progress, ReferenceRunner, require_repeatable
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
from plansmith.sources.memory_check import require_memory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from plansmith.compilers.export.exporters import ExportJob
    from plansmith.sources.dynamic_axes.find import DynamicAxes
    from plansmith.sources.loaded_model import InputPlan, LoadedModel, Signature

    Arrays = Mapping[str, NDArray[np.generic]]

_GRAPH = "graph"
_PROBES: tuple[str, ...] = ("traced", "single", "untraced", "min")


@dataclass(frozen=True)
class _SettledModel:
    """A model that is ready to be asked, and the axes that it is asked along.

    Args:
        live: the model.
        asking: keeps its answers.
        found: which axes move.
        axes: their ranges.
        given: those whose range a person gave.
    """

    live: LoadedModel
    asking: ReferenceRunner
    found: DynamicAxes
    axes: dict[str, AxisRange]
    given: set[str]


def export(request: ExportRequest, progress: Progress) -> OnnxModel:
    """Load the model, find the axes that move, export the graph that agrees with it, and store its answers."""
    from plansmith.compilers.export import rounding, torch_export
    from plansmith.sources.dynamic_axes import find

    settled = _settled(request, progress)
    live, out = settled.live, request.out
    plan, asking, axes, found = live.inputs, settled.asking, settled.axes, settled.found

    def job(fixed: Sequence[str]) -> ExportJob:
        without = found.without({axis: axes[axis].opt for axis in fixed})
        left = {a: r for a, r in axes.items() if a not in fixed}
        return replace(_job(live, without, asking, left, out), opset=min(torch_export.OPSET, request.max_opset))

    first = job(())
    rounded = rounding.measure(first)
    with live.exportable():
        exported = torch_export.export(
            replace(first, rounding=rounded),
            progress,
            optional=()
            if plan.guessed
            else find.least_needed_first(a for a in axes if not _is_wanted(a, axes, settled.given)),
            with_fixed=lambda fixed: replace(job(fixed), rounding=rounded),
        )
    _bring_up(out / _GRAPH)
    given_up = [
        FixedAxis(axis=axis, size=axes[axis].opt, by="exporters", reason=why) for axis, why in exported.given_up.items()
    ]
    left = found.without({one.axis: one.size for one in given_up})
    return OnnxModel(
        components={"model": exported.component},
        axes={axis: r for axis, r in axes.items() if axis in left.plan.axes},
        mask_input=plan.mask_input,
        exporter=exported.attempts[-1].exporter,
        attempts=exported.attempts,
        precision=Precision.FP32,
        reference=_reference(replace(settled, found=left), rounded, out),
        fixed=(*left.fixed, *given_up),
        tied=left.tied,
    )


def run_reference(request: ReferenceRequest, progress: Progress) -> OnnxModel:
    """As `export`, of a model that is served as it is: its axes, its interface and its answers, and no graph."""
    from plansmith.compilers.export import rounding

    settled = _settled(request, progress)
    found = settled.found
    asked = _job(settled.live, found, settled.asking, settled.axes, request.out)
    asked.folder.rmdir()
    component = Component(file="", external_files=(), inputs=asked.inputs, outputs=asked.outputs, opset=0, ir_version=0)
    return OnnxModel(
        components={"model": component},
        axes=settled.axes,
        mask_input=found.plan.mask_input,
        exporter=UNEXPORTED,
        attempts=(),
        precision=Precision.FP32,
        reference=_reference(settled, rounding.measure(asked), request.out),
        fixed=found.fixed,
        tied=found.tied,
    )


def _settled(request: ReferenceRequest, progress: Progress) -> _SettledModel:
    """The loaded model, its axes that move, and where it answers."""
    from plansmith.sources.dynamic_axes import find

    require_memory(request.model.folder)
    progress("loading the model")
    live = load(request.model).on(request.model.device)
    plan, shapes = live.inputs, request.shapes
    axes, given = axes_of(plan, shapes), axes_with_given_ranges(plan, shapes)
    asking = ReferenceRunner(live.ask, plan, axes, progress)
    progress("finding the axes that move")
    found = find.find_dynamic_axes(asking.answer, plan, axes, given)
    _require_moving(found, axes, given)
    axes = find.narrow_ranges(asking.answer, found, axes, given)
    require_repeatable(live.ask, *asking.kept("traced", found.full(found.traced)))
    return _SettledModel(live, asking, found, axes, given)


def _reference(settled: _SettledModel, rounded: dict[str, Rounding], out: Path) -> ReferenceSet:
    """The model's answers along the axes that are left, stored."""
    import torch

    plan, device = settled.live.inputs, settled.live.device
    axes = {axis: r for axis, r in settled.axes.items() if axis in settled.found.plan.axes}
    return ReferenceSet(
        runtime=f"PyTorch {torch.__version__}, FP32{'' if device == 'cpu' else f' on {device}'}",
        data=plan.data,
        cases=_stored(settled.asking, settled.found, axes, out / REFERENCE),
        guessed=plan.drawn,
        rounding=rounded,
    )


def _job(
    live: LoadedModel, found: DynamicAxes, asking: ReferenceRunner, axes: Mapping[str, AxisRange], out: Path
) -> ExportJob:
    """What to export with the axes that are left, judged at the shapes that tell most for their price.

    Those are the first ones, the smallest, and the longest single sample: many graphs are wrong only there.
    """
    from plansmith.compilers.export import exporters, torch_export
    from plansmith.compilers.export.moe_probe import alike, mixes_experts
    from plansmith.data.reference import odd_sizes, plan_cases

    planned: dict[str, dict[str, int]] = dict(plan_cases(axes, found.able, (found.traced, found.untraced)))
    shapes = {name: planned[name] for name in _PROBES if name in planned}
    longest = {axis: r.min if axis == BATCH else r.max for axis, r in axes.items()}
    if longest not in planned.values():
        shapes["longest"] = longest
    odd = odd_sizes(found.able, found.untraced)
    if odd not in shapes.values() and asking.takes(found.full(odd)):
        shapes[torch_export.ODD] = odd
    probes = [exporters.Probe(name, sizes, *asking.kept(name, found.full(sizes))) for name, sizes in shapes.items()]
    same = alike(probes[0], live.ask) if mixes_experts(live.module) else None
    probes += [same] if same else []
    folder = out / _GRAPH
    folder.mkdir(exist_ok=True)
    return exporters.ExportJob(
        module=live.module,
        inputs=found.plan.tensors,
        outputs=torch_export.output_tensors(live.output_names, probes),
        probes=probes,
        mask_input=found.plan.mask_input,
        opset=torch_export.OPSET,
        folder=folder,
        device=live.device,
    )


def _stored(
    asking: ReferenceRunner, found: DynamicAxes, axes: Mapping[str, AxisRange], folder: Path
) -> tuple[Case, ...]:
    """Ask the model at every shape that anything is judged at, and store its answers."""
    from plansmith.data.reference import is_inside, plan_cases, store_case

    cases = []
    for name, sizes in plan_cases(axes, found.able, (found.traced, found.untraced)):
        feed, answer = asking.case(name, found.full(sizes))
        cases.append(store_case(name, sizes, feed, answer, folder, in_range=is_inside(sizes, axes)))
    return tuple(cases)


def _bring_up(folder: Path) -> None:
    """Move the files of a folder to its parent."""
    for file in folder.iterdir():
        file.rename(folder.parent / file.name)
    folder.rmdir()


def _is_wanted(axis: str, axes: Mapping[str, AxisRange], given: Collection[str]) -> bool:
    """Whether a person asked for an axis to move."""
    return axis in given and axes[axis].min < axes[axis].max


def _require_moving(found: DynamicAxes, axes: Mapping[str, AxisRange], given: Collection[str]) -> None:
    """See that nobody asked for a move, or a size, that the model refuses.

    Raises:
        UsageError: somebody did.
    """
    for pair in found.tied:
        if pair.axis in given and axes[pair.axis] != axes[pair.to]:
            raise UsageError(
                f"shapes: {pair.axis!r} and {pair.to!r} are one for this model: {pair.reason}",
                remedy="give both the same sizes",
            )
    for one in found.fixed:
        r = axes[one.axis]
        if one.axis in given and {r.min, r.opt, r.max} != {one.size}:
            wanted = "move" if r.min < r.max else f"be {r.opt}"
            raise UsageError(
                f"shapes: {one.axis!r} is to {wanted}, and the model takes {one.size} only: {one.reason}",
                remedy=f"write {one.size} for it in min, opt and max",
            )


def describe(request: LoadRequest, progress: Progress) -> Signature:
    """Load the model and tell its inputs, outputs, axes and limits."""
    progress("loading the model")
    if request.scheme == "onnx":
        model, plan = plan_graph(Path(request.location), request.inputs, request.outputs)
        signature = plan.signature([output.name for output in model.graph.output])
        return signature.model_copy(update={"shape_inputs": shape_inputs(model)})
    live = load(request)
    return _with_found_axes(live, progress).signature(live.output_names)


def _with_found_axes(live: LoadedModel, progress: Progress) -> InputPlan:
    """What a model is fed with, without the axes and the sizes that it refuses."""
    from plansmith.sources.dynamic_axes import find

    asking = ReferenceRunner(live.ask, live.inputs, live.inputs.axes, progress)
    found = find.find_dynamic_axes(asking.answer, live.inputs, live.inputs.axes)
    return replace(found.plan, axes=find.narrow_ranges(asking.answer, found, live.inputs.axes, ()))
