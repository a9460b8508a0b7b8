"""Taking an ONNX file as it is, in the heavy child: checked, its axes named, its own answers the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plansmith.compilers.export.loading import axes_of, plan_graph
from plansmith.compilers.export.model_calls import Progress, ask_planned, require_repeatable
from plansmith.compilers.shape_inputs import shape_inputs
from plansmith.data.reference import REFERENCE
from plansmith.errors import UsageError
from plansmith.records.model import BATCH, EngineKind, OnnxModel, Precision, ReferenceSet


def take_graph(
    *,
    path: str,
    shapes: Mapping[str, Any],
    profiles: Mapping[str, Any],
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
    out: str,
    progress: Progress,
) -> dict[str, Any]:
    """Check an ONNX file, name what varies in it, and store its own answers as the reference.

    Args:
        path: of the file.
        shapes: the ranges of inputs; those of the profiles where there are none.
        profiles: those of a TensorRT plan, for all of them together.
        inputs: what the spec says of inputs.
        outputs: their names.
        out: the folder to write to.
        progress: told what is being done.
    """
    import onnxruntime

    from plansmith.compilers import onnx_files
    from plansmith.compilers.export import onnx_import
    from plansmith.data.reference import is_inside, plan_cases, store_case

    progress("checking the graph")
    model, plan = plan_graph(Path(path), inputs, outputs, profiles)
    tensors, precision = plan.tensors, onnx_import.detect_precision(model)
    held = shape_inputs(model)
    axes = axes_of(plan, shapes or {name: given for name, given in profiles.items() if name not in held})
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
        inside = is_inside(sizes, axes)
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


def _require_sound(path: Path, precision: Precision) -> None:
    """See that a graph which came lowered, and does not run, was lowered as ONNX Runtime can read it.

    Raises:
        ExportError: names what is wrong.
    """
    import onnx

    from plansmith.compilers.precision.lint.linter import lint, refuse

    if precision is not Precision.FP32:
        refuse(lint(onnx.load(path), engine=EngineKind.ONNXRUNTIME), what=f"the file, which is {precision} already,")


def _already(precision: Precision) -> str:
    return "" if precision is Precision.FP32 else f", {precision} already,"
