"""ONNX Runtime backend rules: the graph's file, and its inputs and outputs against the configuration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from plansmith.errors import RepositoryError
from plansmith.triton.checker.findings import Finding, Rule
from plansmith.triton.checker.model_files import GraphFacts, graph_facts
from plansmith.triton.checker.model_folder import CheckContext, ModelFolder, kinds
from plansmith.triton.checker.rules.backends import accelerator as accelerator_rules
from plansmith.triton.checker.rules.backends import graph_tensor

BACKEND = "onnxruntime"

_SOURCE = "src/onnxruntime.cc of github.com/triton-inference-server/onnxruntime_backend"
_SPEC = "docs/IR.md and docs/ExternalData.md of github.com/onnx/onnx"
_TARGETS = "the target's ONNX Runtime: what was tried with its wheel (configs/targets)"

READABLE = Rule("onnxruntime.graph", "error", "the model file is an ONNX graph", _SPEC)
EXTERNAL = Rule("onnxruntime.external-data", "error", "weights outside of the graph's file lie beside it, whole", _SPEC)
OPSET = Rule("onnxruntime.opset", "error", "the graph's opset is one that the target's ONNX Runtime knows", _TARGETS)
IR_VERSION = Rule(
    "onnxruntime.ir-version", "error", "the graph's file format is one that the target's ONNX Runtime reads", _TARGETS
)
OPERATORS = Rule(
    "onnxruntime.custom-operators",
    "error",
    "operators that are neither ONNX's nor ONNX Runtime's come from a library that model_operations names",
    f"{_SOURCE} (RegisterCustomOpsLibrary)",
)
KIND = Rule(
    "onnxruntime.kind",
    "warning",
    "instances are KIND_GPU or KIND_CPU; of KIND_MODEL, the backend makes CPU ones",
    f"{_SOURCE} (LoadModel)",
)

RULES: tuple[Rule, ...] = (
    *(READABLE, EXTERNAL, OPSET, IR_VERSION, OPERATORS, KIND),
    *graph_tensor.RULES,
    *accelerator_rules.RULES,
)

_OWN_DOMAINS = ("ai.onnx.", "com.microsoft", "com.ms.internal.")
_TENSORRT_PLUGINS = "trt.plugins"  # onnxruntime.ai, TensorRT Execution Provider: custom operators of plugins


def check(model: ModelFolder, surroundings: CheckContext) -> Iterator[Finding]:
    """Yield rule violations of a model of this backend; nothing for others."""
    if model.backend != BACKEND:
        return
    yield from _of_instances(model)
    graphs = {}
    for number in model.loaded:
        path = graph_file(model, number)
        if path is None or not path.stat().st_size:
            continue  # `files.*` says so
        place = model.place(path.relative_to(model.path).as_posix())
        try:
            graphs[number] = graph_facts(path)
        except RepositoryError as error:
            yield READABLE.broken(error.message, model=model.name, place=place, remedy=error.remedy)
            continue
        yield from _of_file(graphs[number], path, model, surroundings)
    newest = graphs[max(graphs)] if graphs else None
    yield from accelerator_rules.check(model, surroundings, newest)
    for number, facts in graphs.items():
        yield from graph_tensor.check(facts, number, model, surroundings)


def graph_file(model: ModelFolder, number: int) -> Path | None:
    """Return the ONNX file of a version; None if there is none."""
    path = model.versions[number] / (model.model_file or "model.onnx")
    path = path / "model.onnx" if path.is_dir() else path
    return path if path.is_file() else None


def largest_batch(model: ModelFolder, surroundings: CheckContext) -> int | None:
    """Return a model's max_batch_size as auto-completed from the newest graph; None if none can be read."""
    path = graph_file(model, max(model.loaded)) if model.loaded else None
    if path is None:
        return None
    try:
        return graph_tensor.completed_batch(graph_facts(path), model, surroundings)
    except RepositoryError:
        return None


def _has_tensorrt(model: ModelFolder) -> bool:
    if model.config is None:
        return False
    accelerators = model.config.optimization.execution_accelerators.gpu_execution_accelerator
    return any(accelerator.name == "tensorrt" for accelerator in accelerators)


def _of_instances(model: ModelFolder) -> Iterator[Finding]:
    if "KIND_MODEL" in kinds(model.config):
        message = "instances of KIND_MODEL run on the CPU"
        yield model.faulted(KIND, message, "KIND_MODEL", remedy="write KIND_GPU, or KIND_CPU")


def _of_file(facts: GraphFacts, path: Path, model: ModelFolder, surroundings: CheckContext) -> Iterator[Finding]:
    place = model.place(path.relative_to(model.path).as_posix())
    for name, size in sorted(facts.external.items()):
        problem = _external_problem(path, name, size)
        if problem:
            remedy = "put the file beside the graph again, or export the graph again"
            yield EXTERNAL.broken(problem, model=model.name, place=place, remedy=remedy)
    runtime = surroundings.target.onnxruntime if surroundings.target is not None else None
    if runtime is not None and facts.opset > runtime.max_opset:
        yield OPSET.broken(
            f"the graph has opset {facts.opset}, and ONNX Runtime {runtime.version} knows up to {runtime.max_opset}",
            model=model.name,
            place=place,
            remedy=f"export it with opset {runtime.max_opset}, or serve it by a newer Triton",
        )
    if runtime is not None and facts.ir_version > runtime.max_ir_version:
        yield IR_VERSION.broken(
            f"the file has format (IR) {facts.ir_version}, and ONNX Runtime {runtime.version} reads up to"
            f" {runtime.max_ir_version}",
            model=model.name,
            place=place,
            remedy=f"save it with ir_version {runtime.max_ir_version}, or serve it by a newer Triton",
        )
    own = (*_OWN_DOMAINS, _TENSORRT_PLUGINS) if _has_tensorrt(model) else _OWN_DOMAINS
    strange = [domain for domain in facts.foreign if not domain.startswith(own)]
    if strange and (model.config is None or not model.config.model_operations.op_library_filename):
        yield OPERATORS.broken(
            f"the graph has operators of {', '.join(strange)}, which ONNX Runtime does not have",
            model=model.name,
            place=place,
            remedy="name their library under model_operations, or export the graph without them",
        )


def _external_problem(graph: Path, name: str, size: int) -> str:
    """The problem with an external weights file; empty where there is none."""
    written = PurePosixPath(name)
    if not name or written.is_absolute() or ".." in written.parts:
        return f"the graph looks for weights in {name or 'a file without a name'!r}, which is not beside it"
    place = graph.parent / written
    if not place.is_file():
        return f"the graph looks for weights in {name}, which is not there"
    has = place.stat().st_size
    return f"{name} has {has:,} bytes, and the graph looks for weights in {size:,}" if has < size else ""
