"""ONNX import in the worker: checks the file and names its axes; its own outputs are the reference."""

from __future__ import annotations

from pathlib import Path

from plansmith.compilers.export.loading import axes_of, plan_graph, reference_at_shape, require_repeatable
from plansmith.compilers.export.requests import ImportRequest
from plansmith.compilers.shape_inputs import shape_inputs
from plansmith.data.reference import REFERENCE
from plansmith.errors import UsageError
from plansmith.records.model import BATCH, EngineKind, OnnxModel, Precision, ReferenceSet
from plansmith.system.tasks import Progress


def import_onnx(request: ImportRequest, progress: Progress) -> OnnxModel:
    """Check an ONNX file, name its dynamic axes, and store its own outputs as the reference."""
    import onnxruntime

    from plansmith.compilers import onnx_files
    from plansmith.compilers.export import onnx_import
    from plansmith.data.reference import is_inside, plan_cases, store_case

    progress("checking the graph")
    profiles, out = request.profiles, request.out
    model, plan = plan_graph(request.path, request.inputs, request.outputs, profiles)
    tensors, precision = plan.tensors, onnx_import.detect_precision(model)
    shape_names = shape_inputs(model)
    axes = axes_of(
        plan, request.shapes or {name: input_range for name, input_range in profiles.items() if name not in shape_names}
    )
    written = onnx_import.write(model, tensors, request.path, out)
    original = onnx_import.OriginalGraph(written)
    planned = plan_cases(axes, plan.able(axes))
    cases = []
    for name, sizes in planned:
        try:
            feed, answer = reference_at_shape(original, plan, axes, (name, sizes), progress)
        except UsageError:
            _require_sound(written, precision)  # a mistake in the graph tells more than the shapes that it fails at
            raise
        if name == "traced":
            require_repeatable(original.run, feed, answer)
        if name == "traced" and all(t.dims[0] == BATCH for t in tensors):
            original.require_independent_samples(tensors, feed, answer, precision)
        inside = is_inside(sizes, axes)
        cases.append(store_case(name, sizes, feed, answer, out / REFERENCE, in_range=inside))
    original.close()
    onnx_import.name_outputs(model, written, original.shapes, [case.axes for case in cases])
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
    """Check that a prelowered graph that fails to run was lowered in a form that ONNX Runtime can read.

    Raises:
        ExportError: names what is wrong.
    """
    import onnx

    from plansmith.compilers.precision.lint.linter import lint, refuse

    if precision is not Precision.FP32:
        refuse(lint(onnx.load(path), engine=EngineKind.ONNXRUNTIME), subject=f"the file, which is {precision} already,")


def _already(precision: Precision) -> str:
    return "" if precision is Precision.FP32 else f", {precision} already,"
