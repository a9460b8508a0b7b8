"""Export, in the heavy child: a source model becomes a graph and the reference's answers at many shapes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.asking import Asking, Progress, ask_planned, require_repeatable
from plansmith.errors import UsageError
from plansmith.loading import axes_of, given_axes, load, plan_graph
from plansmith.room import require_room
from plansmith.types import (
    BATCH,
    AxisRange,
    Case,
    EngineKind,
    ExportDevice,
    FixedAxis,
    OnnxModel,
    Precision,
    ReferenceSet,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from plansmith.compilers.exporters import ExportJob
    from plansmith.sources.live import InputPlan, LiveModel
    from plansmith.sources.moving import Moving

    Arrays = Mapping[str, NDArray[np.generic]]

REFERENCE = "reference"
_GRAPH = "graph"
_PROBES: tuple[str, ...] = ("traced", "single", "untraced", "min")


def export(
    *,
    source: Mapping[str, Any],
    folder: str,
    allow_pickle: bool,
    shapes: Mapping[str, Any],
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
    max_opset: int,
    out: str,
    progress: Progress,
    device: ExportDevice = "cpu",
) -> dict[str, Any]:
    """Load the model, find the axes that move, export the graph that agrees with it, and store its answers."""
    import torch

    from plansmith.compilers import rounding, torch_export
    from plansmith.sources import moving

    require_room(Path(folder))
    progress("loading the model")
    live = load(source, Path(folder), allow_pickle, inputs, outputs).on(device)
    plan = live.inputs
    axes, given = axes_of(plan, shapes), given_axes(plan, shapes)
    asking = Asking(live.ask, plan, axes, progress)
    progress("finding the axes that move")
    found = moving.find_moving(asking.answer, plan, axes, given)
    _require_moving(found, axes, given)
    axes = moving.fitted(asking.answer, found, axes, given)
    traced = asking.kept("traced", found.full(found.traced))
    require_repeatable(live.ask, *traced)

    def job(fixed: Sequence[str]) -> ExportJob:
        settled = found.without({axis: axes[axis].opt for axis in fixed})
        left = {a: r for a, r in axes.items() if a not in fixed}
        return replace(_job(live, settled, asking, left, Path(out)), opset=min(torch_export.OPSET, max_opset))

    first = job(())
    rounded = rounding.measure(first)
    with live.exportable():
        exported = torch_export.export(
            replace(first, rounding=rounded),
            progress,
            optional=()
            if plan.guessed
            else moving.least_needed_first(a for a in axes if not _is_wanted(a, axes, given)),
            with_fixed=lambda fixed: replace(job(fixed), rounding=rounded),
        )
    _bring_up(Path(out) / _GRAPH)
    given_up = [
        FixedAxis(axis=axis, size=axes[axis].opt, by="exporters", reason=why) for axis, why in exported.given_up.items()
    ]
    found = found.without({one.axis: one.size for one in given_up})
    axes = {axis: r for axis, r in axes.items() if axis in found.plan.axes}
    onnx = OnnxModel(
        components={"model": exported.component},
        axes=axes,
        mask_input=plan.mask_input,
        exporter=exported.attempts[-1].exporter,
        attempts=exported.attempts,
        precision=Precision.FP32,
        reference=ReferenceSet(
            runtime=f"PyTorch {torch.__version__}, FP32{'' if device == 'cpu' else f' on {device}'}",
            data=plan.data,
            cases=_stored(asking, found, axes, Path(out) / REFERENCE),
            guessed=plan.drawn,
            rounding=rounded,
        ),
        fixed=(*found.fixed, *given_up),
        tied=found.tied,
    )
    return onnx.model_dump(mode="json")


def _job(live: LiveModel, found: Moving, asking: Asking, axes: Mapping[str, AxisRange], out: Path) -> ExportJob:
    """What to export with the axes that are left, judged at the shapes that tell most for their price.

    Those are the first ones, the smallest, and the longest single sample: many graphs are wrong only there.
    """
    from plansmith.compilers import exporters, torch_export
    from plansmith.compilers.alike import alike, mixes_experts
    from plansmith.reference import odd_sizes, plan_cases

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


def _stored(asking: Asking, found: Moving, axes: Mapping[str, AxisRange], folder: Path) -> tuple[Case, ...]:
    """Ask the model at every shape that anything is judged at, and store its answers."""
    from plansmith.reference import plan_cases, store_case

    cases = []
    for name, sizes in plan_cases(axes, found.able, (found.traced, found.untraced)):
        feed, answer = asking.case(name, found.full(sizes))
        cases.append(store_case(name, sizes, feed, answer, folder, in_range=_inside(sizes, axes)))
    return tuple(cases)


def _bring_up(folder: Path) -> None:
    """Move the files of a folder to its parent."""
    for file in folder.iterdir():
        file.rename(folder.parent / file.name)
    folder.rmdir()


def _is_wanted(axis: str, axes: Mapping[str, AxisRange], given: Collection[str]) -> bool:
    """Whether a person asked for an axis to move."""
    return axis in given and axes[axis].min < axes[axis].max


def _require_moving(found: Moving, axes: Mapping[str, AxisRange], given: Collection[str]) -> None:
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


def take_graph(
    *,
    path: str,
    shapes: Mapping[str, Any],
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
    out: str,
    progress: Progress,
) -> dict[str, Any]:
    """Check an ONNX file, name what varies in it, and store its own answers as the reference."""
    import onnxruntime

    from plansmith.compilers import onnx_files, onnx_import
    from plansmith.reference import plan_cases, store_case

    progress("checking the graph")
    model, plan = plan_graph(Path(path), inputs, outputs)
    tensors, precision = plan.tensors, onnx_import.detect_precision(model)
    axes = axes_of(plan, shapes)
    written = onnx_import.write(model, tensors, Path(path), Path(out))
    asked = onnx_import.Asked(written)
    planned = plan_cases(axes, plan.able(axes))
    cases = []
    for name, sizes in planned:
        try:
            feed, answer = ask_planned(asked, plan, axes, (name, sizes), progress)
        except UsageError:
            _require_sound(written, precision)  # a mistake in the graph tells more than the shapes that it fails at
            raise
        if name == "traced":
            require_repeatable(asked.run, feed, answer)
        if name == "traced" and all(t.dims[0] == BATCH for t in tensors):
            asked.require_independent_samples(tensors, feed, answer, precision)
        inside = _inside(sizes, axes)
        cases.append(store_case(name, sizes, feed, answer, Path(out) / REFERENCE, in_range=inside))
    asked.close()
    onnx_import.name_outputs(model, written, asked.shapes, [case.axes for case in cases])
    onnx = OnnxModel(
        components={"model": onnx_files.describe_model(model, written)},
        axes=axes,
        mask_input=plan.mask_input,
        exporter="none",
        attempts=(),
        precision=precision,
        reference=ReferenceSet(
            runtime=f"the file itself{_already(precision)} in ONNX Runtime {onnxruntime.__version__}, graph"
            " optimisations off",
            data=plan.data,
            cases=tuple(cases),
            guessed=plan.guessed,
        ),
    )
    return onnx.model_dump(mode="json")


def describe(
    *,
    source: Mapping[str, Any],
    folder: str,
    allow_pickle: bool,
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
    progress: Progress,
) -> dict[str, Any]:
    """Load the model and tell its inputs, outputs, axes and limits."""
    progress("loading the model")
    if source["scheme"] == "onnx":
        model, plan = plan_graph(Path(source["location"]), inputs, outputs)
        names: Sequence[str] = [output.name for output in model.graph.output]
    else:
        live = load(source, Path(folder), allow_pickle, inputs, outputs)
        plan, names = _with_found_axes(live, progress), live.output_names
    return plan.signature(names).model_dump(mode="json")


def _with_found_axes(live: LiveModel, progress: Progress) -> InputPlan:
    """What a model is fed with, without the axes and the sizes that it refuses."""
    from plansmith.sources import moving

    asking = Asking(live.ask, live.inputs, live.inputs.axes, progress)
    found = moving.find_moving(asking.answer, live.inputs, live.inputs.axes)
    return replace(found.plan, axes=moving.fitted(asking.answer, found, live.inputs.axes, ()))


def _require_sound(path: Path, precision: Precision) -> None:
    """See that a graph which came lowered, and does not run, was lowered as ONNX Runtime can read it.

    Raises:
        ExportError: names what is wrong.
    """
    import onnx

    from plansmith.compilers.precision.lint import lint, refuse

    if precision is not Precision.FP32:
        refuse(lint(onnx.load(path), engine=EngineKind.ONNXRUNTIME), what=f"the file, which is {precision} already,")


def _already(precision: Precision) -> str:
    return "" if precision is Precision.FP32 else f", {precision} already,"


def _inside(sizes: Mapping[str, int], axes: Mapping[str, AxisRange]) -> bool:
    return all(r.min <= sizes[axis] <= r.max for axis, r in axes.items())
