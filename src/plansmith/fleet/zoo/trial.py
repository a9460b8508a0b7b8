"""One zoo entry in a child process: saves the model, runs PyTorch, compiles it, and compares the graph's outputs."""

from __future__ import annotations

import inspect
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from plansmith.compilers.export.requests import ExportRequest, LoadRequest
from plansmith.errors import PlansmithError, first_line, in_one_line
from plansmith.fleet.zoo.axes import Acceptance, Axis, AxisPlace, Graph, Shape, find_axes, is_stable, resized
from plansmith.fleet.zoo.entries import ZooEntry
from plansmith.fleet.zoo.records import AxisFinding, BareResult, ZooRow, is_of_the_machine, tells_of_the_machine
from plansmith.fleet.zoo.save import save
from plansmith.records.model import BATCH, OnnxModel
from plansmith.system.tasks import Progress

if TYPE_CHECKING:
    import torch

    from plansmith.records.model import Component
    from plansmith.sources.loaded_model import LoadedModel


Exporter = Literal["dynamo", "torchscript"]

_Export = Callable[["LoadedModel", "Acceptance", Path], None]
Fixed = dict[str, dict[int, int]]
"""Sizes that the graph has fixed, by input and place."""

_MOST_WRONG = 3
_MAX_OPSET = 23


def try_bare(live: LoadedModel, accepted: Acceptance, folder: Path) -> Iterator[BareResult]:
    """Export with each exporter as its documentation shows, and compare at every shape that PyTorch accepts.

    Args:
        live: the model, with positional tensors in and a tuple of tensors out.
        accepted: the shapes, the first of which is traced, and the axes that are named dynamic.
        folder: for the graphs.
    """
    exporters: tuple[tuple[Exporter, _Export], ...] = (("dynamo", _dynamo), ("torchscript", _torchscript))
    for name, export in exporters:
        began = time.monotonic()
        problem, moving = _judge(export, live, accepted, folder / f"{name}.onnx")
        yield BareResult(
            exporter=name,
            right=not problem,
            axes_moving=moving,
            problem=problem,
            seconds=round(time.monotonic() - began, 2),
        )


def _judge(export: _Export, live: LoadedModel, accepted: Acceptance, path: Path) -> tuple[str, int]:
    """Return the first problem, empty if there is none, and the number of dynamic axes."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            export(live, accepted, path)
        graph = Graph(path, live.output_names)
    except Exception as error:  # noqa: BLE001 - exporters raise anything
        return f"{type(error).__name__}: {first_line(error)}", 0
    moving = sum(not any(map(graph.problem_at, axis.shapes.values())) for axis in accepted.axes)
    return next(filter(None, map(graph.problem_at, accepted.shapes)), ""), moving


def _dynamo(live: LoadedModel, accepted: Acceptance, path: Path) -> None:
    import torch

    named = _names(live, accepted)
    shapes = tuple(named.values())
    # The shapes mirror the signature, where `*tensors` is one argument that holds them all.
    variadic = any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(live.module.forward).parameters.values())
    program = torch.onnx.export(
        live.module,
        _arguments(live, accepted),
        input_names=list(named),
        output_names=list(live.output_names),
        dynamic_shapes=(shapes,) if variadic else shapes,
        verbose=False,
    )
    assert program is not None
    program.save(str(path))


def _torchscript(live: LoadedModel, accepted: Acceptance, path: Path) -> None:
    import torch

    named = _names(live, accepted)
    torch.onnx.export(
        live.module,
        _arguments(live, accepted),
        str(path),
        input_names=list(named),
        output_names=list(live.output_names),
        dynamic_axes=named,
        dynamo=False,
    )


def _arguments(live: LoadedModel, accepted: Acceptance) -> tuple[torch.Tensor, ...]:
    import torch

    return tuple(torch.from_numpy(accepted.base.feed[tensor.name]) for tensor in live.inputs.tensors)


def _names(live: LoadedModel, accepted: Acceptance) -> dict[str, dict[int, str]]:
    """Return the name of each dynamic dim, by input and position."""
    named: dict[str, dict[int, str]] = {tensor.name: {} for tensor in live.inputs.tensors}
    for number, axis in enumerate(accepted.axes):
        for place in axis.places:
            named[place.tensor][place.dim] = axis.names[0] if axis.names else f"axis_{number}"
    return named


def try_entry(entry: ZooEntry, folder: Path, progress: Progress, *, compare_bare: bool = False) -> ZooRow:
    """Save, compile and evaluate one model.

    Args:
        entry: which one.
        folder: an empty folder for the model and its graph.
        progress: told what is being done.
        compare_bare: let plain torch.onnx.export try too.

    Returns:
        What came of it; what goes wrong on the way is told in it.
    """
    began, cpu_began = time.monotonic(), time.process_time()
    trial = _Trial(entry, folder, progress)
    try:
        row = trial.run(compare_bare=compare_bare)
        machine = any(map(tells_of_the_machine, row.problems))
    except Exception as error:  # noqa: BLE001 - anything that a model or a library raises is this entry's failure
        traceback.print_exc()  # into the log of the child
        row = trial.failed(error)
        machine = is_of_the_machine(error)
    return row.model_copy(
        update={
            "machine": machine,
            "seconds": round(time.monotonic() - began, 2),
            "cpu_seconds": round(time.process_time() - cpu_began, 2),
        }
    )


class _Trial:
    def __init__(self, entry: ZooEntry, folder: Path, progress: Progress) -> None:
        self._entry, self._progress = entry, progress
        self._model, self._out = folder / "model", folder / "graph"
        self._step = "saving the model"

    def run(self, *, compare_bare: bool) -> ZooRow:
        self._say("saving the model")
        self._model.mkdir()
        save(self._entry, self._model)
        self._say("asking PyTorch which axes move")
        live = self._load()
        accepted = find_axes(live.inputs, live.ask, only_batch=bool(self._entry.timm))
        self._say("exporting")
        onnx = self._export()
        self._say("comparing the graph with PyTorch")
        row = self._judge(onnx, accepted, live)
        if compare_bare:
            self._say("plain torch.onnx.export")
            row = row.model_copy(update={"bare": tuple(try_bare(live, accepted, self._out.parent))})
        return row

    def failed(self, error: Exception) -> ZooRow:
        """Return the row of an entry whose export failed."""
        kind, text = type(error).__name__, in_one_line(str(error))
        reason = error.message if isinstance(error, PlansmithError) else f"{kind}: {text}" if text else kind
        return ZooRow(
            name=self._entry.label, scheme=self._entry.scheme, outcome="failed", problem=f"{self._step}: {reason}"
        )

    def _say(self, step: str) -> None:
        self._step = step
        self._progress(step)

    def _request(self) -> LoadRequest:
        task = self._entry.task if self._entry.timm or self._entry.architecture else ""
        return LoadRequest(scheme=self._entry.scheme, folder=self._model, location=str(self._model), task=task)

    def _load(self) -> LoadedModel:
        from plansmith.compilers.export.loading import load

        return load(self._request())

    def _export(self) -> OnnxModel:
        from plansmith.compilers.export.export import export

        self._out.mkdir()
        return export(ExportRequest(model=self._request(), max_opset=_MAX_OPSET, out=self._out), self._progress)

    def _judge(self, onnx: OnnxModel, accepted: Acceptance, live: LoadedModel) -> ZooRow:
        component = onnx.components["model"]
        graph = Graph(self._out / component.file, [tensor.name for tensor in component.outputs])
        problems = []
        if not is_stable(live.ask, accepted.base):
            problems.append("PyTorch itself answers otherwise after the export")
        fixed = _fixed_sizes(component)
        reasons = {fixed_axis.axis: fixed_axis.reason for fixed_axis in onnx.fixed}
        findings = [
            _finding(graph, axis, fixed, live, next((reasons[name] for name in axis.names if name in reasons), ""))
            for axis in accepted.axes
        ]
        checked = list(_reachable(accepted, fixed, live))
        problems += filter(None, map(graph.problem_at, checked))
        if not checked:
            problems.append("the graph takes none of the shapes that PyTorch takes")
        problems = [*(_describe_batch(axis) for axis in findings if _is_batch(axis) and axis.fixed_at), *problems]
        return ZooRow(
            name=self._entry.label,
            scheme=self._entry.scheme,
            outcome="wrong" if problems else "right",
            exporter=onnx.exporter,
            axes=tuple(findings),
            shapes=len(checked),
            wrong=tuple(problems[:_MOST_WRONG]),
            attempts=tuple(f"{a.exporter}: {a.problem}" for a in onnx.attempts if a.problem),
            graph_bytes=sum((self._out / file).stat().st_size for file in component.files),
            problem="; ".join(problems[:_MOST_WRONG]),
        )


def _finding(graph: Graph, axis: Axis, fixed: Fixed, live: LoadedModel, reason: str) -> AxisFinding:
    """Return whether a PyTorch axis is dynamic in the graph and correct at all sizes; `reason`: why it was fixed."""
    fixed_sizes = [size for place in axis.places if (size := fixed.get(place.tensor, {}).get(place.dim))]
    if fixed_sizes:
        problem = f"fixed at {fixed_sizes[0]} in the graph" + (f": {reason}" if reason else "")
    else:
        moved = (_with_fixed(shape, fixed, live) for shape in axis.shapes.values())
        problem = next((issue for shape in moved if shape and (issue := graph.problem_at(shape))), "")
    return AxisFinding(
        name=axis.name,
        dims=tuple(map(str, axis.places)),
        base=axis.base,
        sizes=tuple(sorted(axis.shapes)),
        moves=not problem,
        fixed_at=fixed_sizes[0] if fixed_sizes else 0,
        problem=problem,
    )


def _is_batch(axis: AxisFinding) -> bool:
    return axis.name == BATCH or any(dim.endswith(":0") for dim in axis.dims)


def _describe_batch(axis: AxisFinding) -> str:
    return f"{'the batch' if axis.name == BATCH else axis.name} is {axis.problem}"


def _fixed_sizes(component: Component) -> Fixed:
    """Return the dims of the graph's inputs that are fixed numbers."""
    return {t.name: {i: d for i, d in enumerate(t.dims) if isinstance(d, int)} for t in component.inputs}


def _reachable(accepted: Acceptance, fixed: Fixed, live: LoadedModel) -> Iterator[Shape]:
    """Yield the distinct shapes that the graph permits; dims that it fixes keep their size there."""
    visited: set[tuple[tuple[int, ...], ...]] = set()
    for shape in accepted.shapes:
        allowed = _with_fixed(shape, fixed, live)
        if allowed is None:
            continue
        form = tuple(array.shape for array in allowed.feed.values())
        if form not in visited:
            visited.add(form)
            yield allowed


def _with_fixed(shape: Shape, fixed: Fixed, live: LoadedModel) -> Shape | None:
    """Return a shape with the graph's fixed sizes; None if PyTorch rejects that."""
    named = {
        dim: fixed[tensor.name][place]
        for tensor in live.inputs.tensors
        for place, dim in enumerate(tensor.dims)
        if isinstance(dim, str) and place in fixed.get(tensor.name, {})
    }
    target_sizes = {**shape.sizes, **named}
    feed = shape.feed if not shape.sizes or target_sizes == shape.sizes else live.inputs.make(target_sizes)
    for tensor, sizes in fixed.items():
        for dim, size in sizes.items():
            if feed[tensor].shape[dim] != size:
                feed = resized(feed, (AxisPlace(tensor, dim),), size)
    if feed is shape.feed:
        return shape
    try:
        return Shape(shape.name, feed, live.ask(feed))
    except Exception as error:
        if is_of_the_machine(error):
            raise
        return None
