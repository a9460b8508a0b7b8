"""Taking an ONNX file as it is, in the worker: checked, its axes named, its own answers the reference."""

from __future__ import annotations

from pathlib import Path

from plansmith.compilers.export.loading import axes_of, plan_graph
from plansmith.compilers.export.model_calls import Progress, reference_at_shape, require_repeatable
from plansmith.compilers.export.requests import ImportRequest
from plansmith.compilers.shape_inputs import shape_inputs
from plansmith.data.reference import REFERENCE
from plansmith.errors import UsageError
from plansmith.records.model import BATCH, EngineKind, OnnxModel, Precision, ReferenceSet


def import_onnx(request: ImportRequest, progress: Progress) -> OnnxModel:
    """Check an ONNX file, name what varies in it, and store its own answers as the reference."""
    import onnxruntime

    from plansmith.compilers import onnx_files
    from plansmith.compilers.export import onnx_import
    from plansmith.data.reference import is_inside, plan_cases, store_case

    progress("checking the graph")
    profiles, out = request.profiles, request.out
    model, plan = plan_graph(request.path, request.inputs, request.outputs, profiles)
    tensors, precision = plan.tensors, onnx_import.detect_precision(model)
    held = shape_inputs(model)
    axes = axes_of(plan, request.shapes or {name: one for name, one in profiles.items() if name not in held})
    written = onnx_import.write(model, tensors, request.path, out)
    asked = onnx_import.OriginalGraph(written)
    planned = plan_cases(axes, plan.able(axes))
    cases = []
    for name, sizes in planned:
        try:
            feed, answer = reference_at_shape(asked, plan, axes, (name, sizes), progress)
        except UsageError:
            _require_sound(written, precision)  # a mistake in the graph tells more than the shapes that it fails at
            raise
        if name == "traced":
            require_repeatable(asked.run, feed, answer)
        if name == "traced" and all(t.dims[0] == BATCH for t in tensors):
            asked.require_independent_samples(tensors, feed, answer, precision)
        inside = is_inside(sizes, axes)
        cases.append(store_case(name, sizes, feed, answer, out / REFERENCE, in_range=inside))
    asked.close()
    onnx_import.name_outputs(model, written, asked.shapes, [case.axes for case in cases])
    return OnnxModel(
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
