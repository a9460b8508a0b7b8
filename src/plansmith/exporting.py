"""Export, in the heavy child: a source model becomes a graph and the reference's answers at many shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.errors import SourceError, UsageError
from plansmith.loading import axes_of, load, plan_graph
from plansmith.memory import tells_of_memory
from plansmith.types import BATCH, AxisRange, EngineKind, OnnxModel, Precision, ReferenceSet

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from plansmith.compilers.torch_export import Probe
    from plansmith.sources.live import InputPlan

    Arrays = Mapping[str, NDArray[np.generic]]

REFERENCE = "reference"
_PROBES = ("traced", "single", "untraced")

Progress = Callable[[str], None]


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
) -> dict[str, Any]:
    """Load the model, store the reference's answers and export the graph that agrees with them."""
    import torch

    from plansmith.compilers import torch_export
    from plansmith.reference import plan_cases, store_case

    progress("loading the model")
    live = load(source, Path(folder), allow_pickle, inputs, outputs)
    plan = live.inputs
    axes = axes_of(plan, shapes)
    planned = plan_cases(axes, plan.able(axes))

    def ask(name: str, sizes: Mapping[str, int]) -> Probe:
        feed, answer = _ask(live.ask, plan, axes, name, sizes, progress)
        return torch_export.Probe(name, sizes, feed, answer)

    probes = [ask(name, sizes) for name, sizes in planned if name in _PROBES]
    _require_repeatable(live.ask, probes[0].feed, probes[0].answer)
    job = torch_export.ExportJob(
        module=live.module,
        inputs=plan.tensors,
        outputs=torch_export.output_tensors(live.output_names, probes),
        probes=probes,
        mask_input=plan.mask_input,
        opset=min(torch_export.OPSET, max_opset),
        folder=Path(out),
    )
    with live.exportable():
        component, attempts = torch_export.export(job, progress)
    known = {p.name: p for p in probes}
    cases = []
    for name, sizes in planned:
        probe = known.get(name) or ask(name, sizes)
        inside = _inside(sizes, axes)
        cases.append(store_case(name, sizes, probe.feed, probe.answer, Path(out) / REFERENCE, in_range=inside))
    onnx = OnnxModel(
        components={"model": component},
        axes=axes,
        mask_input=plan.mask_input,
        exporter=attempts[-1].exporter,
        attempts=attempts,
        precision=Precision.FP32,
        reference=ReferenceSet(
            runtime=f"PyTorch {torch.__version__}, FP32", data=plan.data, cases=tuple(cases), guessed=plan.guessed
        ),
    )
    return onnx.model_dump(mode="json")


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
            feed, answer = _ask(asked, plan, axes, name, sizes, progress)
        except UsageError:
            _require_sound(written, precision)  # a mistake in the graph tells more than the shapes that it fails at
            raise
        if name == "traced":
            _require_repeatable(asked.run, feed, answer)
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
        plan, names = live.inputs, live.output_names
    return plan.signature(names).model_dump(mode="json")


def _require_repeatable(ask: Callable[[Arrays], Arrays], feed: Arrays, answer: Arrays) -> None:
    """See that the same inputs get the same answer: nothing can be compared with a model that draws lots.

    Raises:
        SourceError: they do not.
    """
    import numpy as np

    again = ask(feed)
    for name, array in answer.items():
        if array.dtype.kind != "f":
            continue
        scale = float(np.abs(array[np.isfinite(array)]).max(initial=0))
        if again[name].shape != array.shape or not np.allclose(again[name], array, 0, 1e-3 * scale, equal_nan=True):
            raise SourceError(
                f"the model gives different answers to the same inputs: {name!r} has changed",
                remedy="take out of it what is random (dropout, RandomNormal), and export or save it again",
            )


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


def _ask(
    ask: Callable[[Arrays], Arrays],
    plan: InputPlan,
    axes: Mapping[str, AxisRange],
    name: str,
    sizes: Mapping[str, int],
    progress: Progress,
) -> tuple[Arrays, Arrays]:
    """Inputs at one shape, and the source model's answer.

    Raises:
        UsageError: the shape was guessed, and the model refuses it.
    """
    progress(f"asking the source model at {name} ({'x'.join(map(str, sizes.values()))})")
    feed = plan.make(sizes)
    try:
        return feed, ask(feed)
    except Exception as error:
        if not plan.guessed or tells_of_memory(f"{type(error).__name__}: {error}"):
            raise
        from plansmith.sources.probing import explain_failure

        progress("looking for the axis that it refuses")
        raise explain_failure(lambda sizes: ask(plan.make(sizes)), plan, axes, sizes, error) from error
