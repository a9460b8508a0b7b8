"""The heavy child of a compile: loads the model once and does the steps that need it.

Run as `python -m plansmith.steps.worker <file descriptor> <parent>` by `process.Worker`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from plansmith.compilers.export.export import ask_model, describe, export
from plansmith.compilers.precision.given import check_given
from plansmith.compilers.precision.lowering import lower
from plansmith.compilers.trt.evaluation.evaluate import judge_plan
from plansmith.compilers.trt.lint import lint_plan
from plansmith.config.pipeline import PipelineOptions
from plansmith.errors import EnvironmentFault, UsageError, first_line
from plansmith.pipelines.build import join
from plansmith.pipelines.script import script
from plansmith.records.engine import Engine
from plansmith.records.model import EngineKind, LoweredModel, OnnxModel, Precision, Recipe
from plansmith.records.validation import ToleranceChange
from plansmith.steps.worker.import_onnx import take_graph
from plansmith.steps.worker.sampling import entry_point_digest, sample
from plansmith.system.process import serve

RANDOM_SEED = 0

Progress = Callable[[str], None]


def timm_hub_id(*, name: str, progress: Progress) -> dict[str, str]:
    """The hub repository of a timm name."""
    from plansmith.sources import timm

    progress("looking the name up")
    return {"hub_id": timm.hub_id(name)}


def graph_files(*, path: str, progress: Progress) -> dict[str, Any]:
    """The files of weights that an ONNX file needs beside it."""
    from plansmith.sources import onnx_file

    progress("looking for the weights of the graph")
    return {"weights": onnx_file.weights_of(Path(path))}


def make_random(
    *, scheme: str, location: str, trust_remote_code: bool, task: str, out: str, progress: Progress
) -> dict[str, Any]:
    """Write a model with random weights; `location` is a timm name or a transformers directory."""
    progress("drawing random weights")
    if scheme == "timm":
        from plansmith.sources import timm

        timm.make_random(location, Path(out), seed=RANDOM_SEED)
    else:
        from plansmith.sources.huggingface import models

        models.make_random(Path(location), Path(out), seed=RANDOM_SEED, trust_remote_code=trust_remote_code, task=task)
    return {}


def compile_engine(
    *, lowered: Mapping[str, Any], folder: str, max_opset: int, max_ir_version: int, out: str, progress: Progress
) -> dict[str, Any]:
    """Make the ONNX Runtime engine of a graph."""
    from plansmith.compilers.onnxrt import compile_onnxruntime

    progress("making the engine")
    model = LoweredModel.model_validate(lowered)
    engine = compile_onnxruntime(model, Path(folder), Path(out), max_opset=max_opset, max_ir_version=max_ir_version)
    return engine.model_dump(mode="json")


def compile_python(
    *,
    lowered: Mapping[str, Any],
    source: Mapping[str, Any],
    folder: str,
    files: Sequence[str],
    lasting: bool,
    out: str,
    progress: Progress,
    pipeline: Mapping[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Lay out the folder from which Triton's Python backend serves a PyTorch model, or the text that it generates."""
    from plansmith.compilers.python_backend.model_folder import ServedModel, write_folder

    progress("laying out the model")
    component = LoweredModel.model_validate(lowered).components["model"]
    generation = _generation(source, Path(folder), pipeline)
    if generation is not None and settings["torch_compile"]:
        raise UsageError(
            "python.torch_compile compiles a model for the shapes that it is served at, and text grows by a token each"
            " time that the model is asked",
            remedy="leave torch_compile out, or say pipeline: {output: tensors}",
        )
    served = ServedModel(
        **source, **settings, inputs=component.inputs, outputs=component.outputs, generation=generation
    )
    paths = [Path(folder, file) for file in files]
    return write_folder(served, Path(folder), paths, Path(out), lasting=lasting).model_dump(mode="json")


def _generation(source: Mapping[str, Any], folder: Path, pipeline: Mapping[str, Any] | None) -> PipelineOptions | None:
    """What the spec says of the text that a model generates; None where it serves the model's outputs."""
    from plansmith.compilers.python_backend.generator_loading import wants_generation

    options = PipelineOptions.model_validate(pipeline) if pipeline is not None else None
    told = {"trust_remote_code": source["trust_remote_code"], "task": source["task"] or ""}
    return options if wants_generation(folder, source["scheme"], options, **told) else None


def plan_graph(*, lowered: Mapping[str, Any], folder: str, out: str, progress: Progress) -> dict[str, Any]:
    """The graph that TensorRT gets: in FP32 without what is redundant, as it is where it was lowered."""
    import onnx

    from plansmith.compilers.onnxrt import clean
    from plansmith.compilers.shape_inputs import shape_inputs
    from plansmith.compilers.trt.inspection.layers import nodes_in_fp32
    from plansmith.system.files import link_or_copy

    progress("making the graph ready for TensorRT")
    model = LoweredModel.model_validate(lowered)
    component = model.components["model"]
    if model.precision is Precision.FP32:
        component = clean(component, Path(folder), Path(out))
    else:
        for file in component.files:
            link_or_copy(Path(folder, file), Path(out, file))
    graph = onnx.load(Path(out, component.file), load_external_data=False)
    high = () if model.precision is Precision.FP32 else nodes_in_fp32(Path(out, component.file))
    return {
        "component": component.model_dump(mode="json"),
        "shape_inputs": shape_inputs(graph),
        "in_fp32": [node.model_dump(mode="json") for node in high],
    }


def validate(
    *,
    engine: Mapping[str, Any],
    engine_folder: str,
    onnx: Mapping[str, Any],
    reference_folder: str,
    tolerances: Mapping[str, Any],
    progress: Progress,
    held_out: Mapping[str, Any] | None = None,
    recipe: Mapping[str, Any] | None = None,
    runnable: str = "",
) -> dict[str, Any]:
    """Run the gate; the verdict is in the report."""
    from plansmith.compilers.python_backend.candidate import own_way
    from plansmith.validation import gate
    from plansmith.validation.held_out import HeldOut

    made = Engine.model_validate(engine)
    report = gate.validate(
        gate.Candidate(
            made,
            Path(engine_folder),
            own_way=own_way(made, Path(engine_folder), progress) if made.kind is EngineKind.PYTHON else None,
            recipe=Recipe.model_validate(recipe) if recipe is not None else None,
            runnable=Path(runnable) if runnable else None,
        ),
        OnnxModel.model_validate(onnx),
        Path(reference_folder),
        overrides={k: ToleranceChange.model_validate(v) for k, v in tolerances.items()},
        progress=progress,
        held_out=HeldOut.model_validate(held_out) if held_out is not None else None,
    )
    return report.model_dump(mode="json")


FUNCTIONS = {
    f.__name__: f
    for f in (
        timm_hub_id,
        graph_files,
        make_random,
        describe,
        export,
        ask_model,
        take_graph,
        entry_point_digest,
        sample,
        check_given,
        lower,
        lint_plan,
        compile_engine,
        compile_python,
        plan_graph,
        validate,
        judge_plan,
        join,
        script,
    )
}


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(**arguments: Any) -> Any:
        try:
            return function(**arguments)
        except ImportError as error:
            if error.name is None:  # a library says what it would need for this model
                raise EnvironmentFault(first_line(error), remedy="install the library that it names") from error
            raise EnvironmentFault(
                f"{error.name} is not installed", remedy="pip install 'plansmith[compile]'"
            ) from error

    return call


if __name__ == "__main__":
    serve({name: _guarded(function) for name, function in FUNCTIONS.items()}, int(sys.argv[1]))
