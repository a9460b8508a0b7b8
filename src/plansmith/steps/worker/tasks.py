"""Worker tasks of a compile: the request and result of each.

The driver calls a task by its record here, and `__main__` has the function that does it: mypy holds both to the same
records. A request and its answer cross as JSON.
"""

from __future__ import annotations

from pathlib import Path

from plansmith.compilers.export.requests import LoadRequest
from plansmith.compilers.precision.requests import LintPlanRequest, LintWarnings, LowerRequest, PrelowerCheckRequest
from plansmith.compilers.trt.evaluation.requests import EvaluatePlanRequest
from plansmith.config.engine_options import TorchCompile
from plansmith.config.pipeline import PipelineOptions
from plansmith.pipelines.requests import JoinRequest, ScriptRequest
from plansmith.records.engine import Engine
from plansmith.records.model import (
    AxisRange,
    Component,
    DataSet,
    HighPrecisionNode,
    LoweredModel,
    OnnxModel,
    Recipe,
    Record,
    SourceScheme,
)
from plansmith.records.pipeline import Pipeline, Script
from plansmith.records.validation import ToleranceChange, ValidationReport
from plansmith.sources.loaded_model import Signature
from plansmith.steps.worker.sample_request import EntryPointRequest, SampleDigest, SampleRequest
from plansmith.system.tasks import Nothing, Task
from plansmith.validation.verdict import HeldOut

DESCRIBE = Task("describe", LoadRequest, Signature)
ENTRY_POINT_DIGEST = Task("entry_point_digest", EntryPointRequest, SampleDigest)
SAMPLE = Task("sample", SampleRequest, DataSet)
CHECK_PRELOWERED = Task("check_prelowered", PrelowerCheckRequest, LintWarnings)
LOWER = Task("lower", LowerRequest, LoweredModel)
LINT_PLAN = Task("lint_plan", LintPlanRequest, LintWarnings)
EVALUATE_PLAN = Task("evaluate_plan", EvaluatePlanRequest, ValidationReport)
JOIN = Task("join", JoinRequest, Pipeline)
SCRIPT = Task("script", ScriptRequest, Script)


class TimmName(Record):
    """A model name in timm."""

    name: str


class HubId(Record):
    """A repository on the Hugging Face Hub."""

    hub_id: str


class GraphFile(Record):
    """An ONNX file."""

    path: Path


class GraphWeights(Record):
    """External weight files of an ONNX file, with their minimum sizes in bytes."""

    weights: dict[str, int]


class RandomModelRequest(Record):
    """Request for a model with random weights.

    Attributes:
        scheme: what kind of source it is.
        location: a timm name, or a directory of transformers.
        trust_remote_code: whether the model's own Python code may be run.
        task: decides the model class; empty where the configuration does.
        out: the folder to write to.
    """

    scheme: SourceScheme
    location: str
    trust_remote_code: bool
    task: str
    out: Path


class EngineRequest(Record):
    """Request to build an ONNX Runtime engine from a graph.

    Attributes:
        lowered: the graph.
        folder: holds its files.
        max_opset: the newest that the target's ONNX Runtime reads.
        max_ir_version: likewise.
        out: the folder to write to.
    """

    lowered: LoweredModel
    folder: Path
    max_opset: int
    max_ir_version: int
    out: Path


class ModelFolderRequest(Record):
    """Request to package a PyTorch model for Triton's Python backend.

    Attributes:
        model: the source model, and how it is loaded.
        files: what it consists of, relative to its folder.
        lasting: whether nobody ever writes into these files, so that they need no copy.
        lowered: its interface, and what it computes in.
        axes: the ranges of all axes that it is fed along.
        torch_compile: how torch.compile is used.
        pipeline: what the spec says of its pipeline, if there is one.
        out: the folder to write to.
    """

    model: LoadRequest
    files: tuple[str, ...]
    lasting: bool
    lowered: LoweredModel
    axes: dict[str, AxisRange]
    torch_compile: TorchCompile
    pipeline: PipelineOptions | None
    out: Path


class PlanGraphRequest(Record):
    """Request to prepare a graph for TensorRT; `folder` has its files, the graph is written to `out`."""

    lowered: LoweredModel
    folder: Path
    out: Path


class PreparedGraph(Record):
    """A graph as it is passed to TensorRT.

    Attributes:
        component: its file and interface.
        shape_inputs: inputs that hold a shape.
        in_fp32: nodes that compute in FP32 on purpose.
    """

    component: Component
    shape_inputs: tuple[str, ...]
    in_fp32: tuple[HighPrecisionNode, ...]


class ValidateRequest(Record):
    """Request to validate an engine against the reference.

    Attributes:
        engine: what is judged.
        engine_folder: holds its files.
        onnx: the exported graph and its reference.
        reference_folder: where that lies.
        tolerances: what differs from the defaults, by output.
        held_out: samples that nothing has looked at before.
        recipe: how the graph was lowered, if it was.
        runnable: the graph to run in the engine's place, where ONNX Runtime cannot run that on a CPU.
    """

    engine: Engine
    engine_folder: Path
    onnx: OnnxModel
    reference_folder: Path
    tolerances: dict[str, ToleranceChange]
    held_out: HeldOut | None = None
    recipe: Recipe | None = None
    runnable: Path | None = None


TIMM_HUB_ID = Task("timm_hub_id", TimmName, HubId)
GRAPH_FILES = Task("graph_files", GraphFile, GraphWeights)
MAKE_RANDOM = Task("make_random", RandomModelRequest, Nothing)
COMPILE_ENGINE = Task("compile_engine", EngineRequest, Engine)
COMPILE_PYTHON = Task("compile_python", ModelFolderRequest, Engine)
PLAN_GRAPH = Task("plan_graph", PlanGraphRequest, PreparedGraph)
VALIDATE = Task("validate", ValidateRequest, ValidationReport)
