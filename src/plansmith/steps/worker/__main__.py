"""Worker process of a compile: loads the model once and runs the steps that need it.

Run as `python -m plansmith.steps.worker <file descriptor>` by `process.Worker`, or forked by a fork server.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from plansmith.compilers.export.export import describe, export, run_reference
from plansmith.compilers.export.requests import EXPORT, IMPORT_ONNX, RUN_REFERENCE, LoadRequest
from plansmith.compilers.precision.lowering import check_prelowered, lower
from plansmith.compilers.trt.evaluation.evaluate import evaluate_plan
from plansmith.compilers.trt.lint import lint_plan
from plansmith.config.pipeline import PipelineOptions
from plansmith.errors import EnvironmentFault, UsageError, first_line
from plansmith.pipelines.build import join, script
from plansmith.records.engine import Engine
from plansmith.records.model import DataSet, EngineKind, OnnxModel, Precision, Record
from plansmith.records.validation import ValidationReport
from plansmith.steps.worker import tasks
from plansmith.steps.worker.import_onnx import import_onnx
from plansmith.steps.worker.sampling import entry_point_digest, sample
from plansmith.system.isolation import isolation_of_process
from plansmith.system.process import serve
from plansmith.system.tasks import Nothing, Progress

RANDOM_SEED = 0

Q = TypeVar("Q", bound=Record)
M = TypeVar("M", OnnxModel, DataSet)


def timm_hub_id(request: tasks.TimmName, progress: Progress) -> tasks.HubId:
    """Return the Hub repository of a timm model name."""
    from plansmith.sources import timm

    progress("looking the name up")
    return tasks.HubId(hub_id=timm.hub_id(request.name))


def graph_files(request: tasks.GraphFile, progress: Progress) -> tasks.GraphWeights:
    """Return the external weight files that an ONNX file needs."""
    from plansmith.sources import onnx_file

    progress("looking for the weights of the graph")
    return tasks.GraphWeights(weights=onnx_file.weights_of(request.path))


def make_random(request: tasks.RandomModelRequest, progress: Progress) -> Nothing:
    """Write a model with random weights."""
    progress("drawing random weights")
    if request.scheme == "timm":
        from plansmith.sources import timm

        timm.make_random(request.location, request.out, seed=RANDOM_SEED)
    else:
        from plansmith.sources.huggingface import models

        models.make_random(
            Path(request.location),
            request.out,
            seed=RANDOM_SEED,
            trust_remote_code=request.trust_remote_code,
            task=request.task,
        )
    return Nothing()


def compile_engine(request: tasks.EngineRequest, progress: Progress) -> Engine:
    """Build the ONNX Runtime engine of a graph."""
    from plansmith.compilers.onnxrt import compile_onnxruntime

    progress("making the engine")
    return compile_onnxruntime(
        request.lowered,
        request.folder,
        request.out,
        max_opset=request.max_opset,
        max_ir_version=request.max_ir_version,
    )


def compile_python(request: tasks.ModelFolderRequest, progress: Progress) -> Engine:
    """Package a PyTorch model, or its text generation, as a model folder for Triton's Python backend."""
    from plansmith.compilers.python_backend.model_folder import ServedModel, write_folder

    progress("laying out the model")
    model, component = request.model, request.lowered.components["model"]
    generation = _generation(model, request.pipeline)
    if generation is not None and request.torch_compile:
        raise UsageError(
            "python.torch_compile compiles a model for the shapes that it is served at, and text grows by a token each"
            " time that the model is asked",
            remedy="leave torch_compile out, or say pipeline: {output: tensors}",
        )
    assert model.scheme in {"hf", "timm"}
    served = ServedModel(
        scheme="timm" if model.scheme == "timm" else "hf",
        trust_remote_code=model.trust_remote_code,
        task=model.task or None,
        described=model.inputs,
        wanted=model.outputs,
        inputs=component.inputs,
        outputs=component.outputs,
        axes=request.axes,
        precision=request.lowered.precision,
        torch_compile=request.torch_compile,
        generation=generation,
    )
    paths = [model.folder / file for file in request.files]
    return write_folder(served, model.folder, paths, request.out, lasting=request.lasting)


def _generation(model: LoadRequest, options: PipelineOptions | None) -> PipelineOptions | None:
    """Return the spec's text generation settings; None if it serves the model's outputs."""
    from plansmith.compilers.python_backend.generator_loading import wants_generation

    wants = wants_generation(
        model.folder, model.scheme, options, trust_remote_code=model.trust_remote_code, task=model.task
    )
    return options if wants else None


def plan_graph(request: tasks.PlanGraphRequest, progress: Progress) -> tasks.PreparedGraph:
    """Return the graph for TensorRT: simplified in FP32, unchanged if it was lowered."""
    from plansmith.compilers.onnxrt import clean
    from plansmith.compilers.shape_inputs import read_shape_inputs
    from plansmith.compilers.trt.layers import nodes_in_fp32
    from plansmith.system.files import link_or_copy

    progress("making the graph ready for TensorRT")
    is_fp32 = request.lowered.precision is Precision.FP32
    component = request.lowered.components["model"]
    if is_fp32:
        component = clean(component, request.folder, request.out)
    else:
        for file in component.files:
            link_or_copy(request.folder / file, request.out / file)
    path = request.out / component.file
    return tasks.PreparedGraph(
        component=component,
        shape_inputs=read_shape_inputs(path),
        in_fp32=() if is_fp32 else nodes_in_fp32(path),
    )


def validate(request: tasks.ValidateRequest, progress: Progress) -> ValidationReport:
    """Run the accuracy gate; the verdict is in the report."""
    from plansmith.compilers.python_backend.candidate import candidate_runner
    from plansmith.validation import gate

    engine, folder = request.engine, request.engine_folder
    return gate.validate(
        gate.Candidate(
            engine,
            folder,
            own_way=candidate_runner(engine, folder, progress) if engine.kind is EngineKind.PYTHON else None,
            recipe=request.recipe,
            runnable=request.runnable,
        ),
        request.onnx,
        request.reference_folder,
        overrides=request.tolerances,
        progress=progress,
        held_out=request.held_out,
    )


def _with_isolation(function: Callable[[Q, Progress], M]) -> Callable[[Q, Progress], M]:
    """Return a function that records in its result how this process is isolated, if it was to be."""

    def recorded(request: Q, progress: Progress) -> M:
        result = function(request, progress)
        isolation = isolation_of_process()
        return result if isolation is None else result.model_copy(update={"isolation": isolation})

    return recorded


FUNCTIONS = dict(
    (
        tasks.TIMM_HUB_ID.served_by(timm_hub_id),
        tasks.GRAPH_FILES.served_by(graph_files),
        tasks.MAKE_RANDOM.served_by(make_random),
        tasks.DESCRIBE.served_by(describe),
        EXPORT.served_by(_with_isolation(export)),
        RUN_REFERENCE.served_by(_with_isolation(run_reference)),
        IMPORT_ONNX.served_by(import_onnx),
        tasks.ENTRY_POINT_DIGEST.served_by(entry_point_digest),
        tasks.SAMPLE.served_by(_with_isolation(sample)),
        tasks.CHECK_PRELOWERED.served_by(check_prelowered),
        tasks.LOWER.served_by(lower),
        tasks.LINT_PLAN.served_by(lint_plan),
        tasks.COMPILE_ENGINE.served_by(compile_engine),
        tasks.COMPILE_PYTHON.served_by(compile_python),
        tasks.PLAN_GRAPH.served_by(plan_graph),
        tasks.VALIDATE.served_by(validate),
        tasks.EVALUATE_PLAN.served_by(evaluate_plan),
        tasks.JOIN.served_by(join),
        tasks.SCRIPT.served_by(script),
    )
)


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


def functions() -> dict[str, Callable[..., Any]]:
    """Return the functions that do the tasks, by name, for `process.serve`."""
    return {name: _guarded(function) for name, function in FUNCTIONS.items()}


if __name__ == "__main__":
    serve(functions(), int(sys.argv[1]))
