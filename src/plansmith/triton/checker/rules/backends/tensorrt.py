"""TensorRT backend rules: what the configuration alone decides, and all other rules of plans."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.triton.checker.findings import Finding, Rule
from plansmith.triton.checker.model_files import PlanFacts, plan_facts
from plansmith.triton.checker.model_folder import (
    CheckContext,
    ModelFolder,
    backend_setting,
    data_type,
    entry_line,
    inner_dims,
    kinds,
    numpy_name,
)
from plansmith.triton.checker.rules.backends import plan_file, plan_tensor

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

BACKEND, PLATFORM = "tensorrt", "tensorrt_plan"

_REPOSITORY = "github.com/triton-inference-server/tensorrt_backend"
_INSTANCES = f"src/instance_state.cc of {_REPOSITORY}"
_MODELS = f"src/model_state.cc of {_REPOSITORY}"
_CONFIGURATION = "docs/user_guide/model_configuration.md of github.com/triton-inference-server/server"

KIND = Rule(
    "tensorrt.kind",
    "error",
    "instances of plans are KIND_GPU, or KIND_MODEL with enable_multi_device; the target has GPUs",
    f"src/tensorrt.cc of {_REPOSITORY} (TRITONBACKEND_ModelInstanceInitialize)",
)
DTYPE = Rule(
    "tensorrt.dtype",
    "error",
    "inputs and outputs are of dtypes that the backend knows: BOOL, UINT8, INT8, INT32, INT64, FP16, FP32, BF16",
    f"src/tensorrt_utils.cc of {_REPOSITORY}",
)
SHAPE_TENSOR = Rule(
    "tensorrt.shape-tensor",
    "error",
    "a shape tensor has one dim, is INT32 or INT64, and INT64 as an output; what is none is not marked as one",
    f"src/shape_tensor.cc and {_INSTANCES}",
)
ARGUMENTS = Rule(
    "tensorrt.server-argument",
    "warning",
    "the server is started with what a plan needs: version-compatible=true, and its plugins",
    f"src/tensorrt.cc of {_REPOSITORY} (TRITONBACKEND_Initialize) and its README",
)
GRAPHS = Rule(
    "tensorrt.cuda-graphs",
    "warning",
    "where CUDA graphs are on, there are shapes that they can be captured for",
    f"{_INSTANCES} (BuildCudaGraph); {_CONFIGURATION} (optimization.cuda)",
)
COPIES = Rule(
    "tensorrt.instances",
    "note",
    "plans whose shapes vary are not shared: each instance has weights of its own on the GPU",
    f"{_MODELS} (CreateEngine)",
)

PARAMETER = Rule(
    "tensorrt.parameter",
    "error",
    "execution_context_allocation_strategy is STATIC or ON_PROFILE_CHANGE",
    f"README.md and {_MODELS} (ParseParameters)",
)

RULES: tuple[Rule, ...] = (
    *(KIND, DTYPE, SHAPE_TENSOR, ARGUMENTS, GRAPHS, COPIES, PARAMETER),
    *plan_file.RULES,
    *plan_tensor.RULES,
)

_STRATEGY, _STRATEGIES = "execution_context_allocation_strategy", ("STATIC", "ON_PROFILE_CHANGE")
_DTYPES = {"bool", "uint8", "int8", "int32", "int64", "float16", "float32", "bfloat16"}


def check(model: ModelFolder, surroundings: CheckContext) -> Iterator[Finding]:
    """Yield rule violations of a model of this backend; nothing for others."""
    if model.backend != BACKEND and model.platform != PLATFORM:
        return
    yield from _kinds(model, surroundings)
    yield from _tensors(model)
    yield from _graphs(model)
    yield from _parameters(model)
    yield from _arguments(model, surroundings)
    yield from plan_file.check(model, surroundings)
    for number in model.loaded:
        facts = plan_facts(model.manifests[number]) if number in model.manifests else None
        if facts is not None:
            yield from _copies(model, facts)
            yield from plan_tensor.check(facts, number, model, surroundings)


def _kinds(model: ModelFolder, surroundings: CheckContext) -> Iterator[Finding]:
    config, target = model.config, surroundings.target
    several = config is not None and "enable_multi_device" in config.parameters
    wrong = [kind for kind in kinds(config) if kind == "KIND_CPU" or (kind == "KIND_MODEL" and not several)]
    for kind in dict.fromkeys(wrong):
        yield _broken(
            KIND, model, f"the backend has no instances of {kind}", "write KIND_GPU, or leave the kind out", kind
        )
    if target is not None and target.device != "gpu" and not wrong:
        message = f"the target {target.name} has no GPUs, on which alone plans run"
        yield _broken(KIND, model, message, "take a --target with GPUs, or another engine")


def _tensors(model: ModelFolder) -> Iterator[Finding]:
    """Check the configured inputs and outputs for settings that no plan can have."""
    config = model.config
    for entry in (*config.input, *config.output) if config is not None else ():
        written, is_output = data_type(entry), config is not None and entry in config.output
        if numpy_name(written) not in _DTYPES and written != "TYPE_INVALID":
            message = f"{entry.name} is {written}, which the backend does not know"
            yield _broken(DTYPE, model, message, "cast it inside of the graph, and build the plan again", entry.name)
        elif entry.is_shape_tensor:
            yield from _shape_tensor(model, entry, written, is_output=is_output)


def _shape_tensor(
    model: ModelFolder, entry: pb.ModelInput | pb.ModelOutput, written: str, *, is_output: bool
) -> Iterator[Finding]:
    allowed = ("TYPE_INT64",) if is_output else ("TYPE_INT32", "TYPE_INT64")
    if written not in allowed:
        message = f"the shape tensor {entry.name} is {written}"
        yield _broken(SHAPE_TENSOR, model, message, f"write data_type: {' or '.join(allowed)}", entry.name)
    if len(inner_dims(entry)) > 1:
        message = f"the shape tensor {entry.name} has {len(inner_dims(entry))} dims"
        yield _broken(SHAPE_TENSOR, model, message, "write one dim, or take is_shape_tensor away", entry.name)


def _graphs(model: ModelFolder) -> Iterator[Finding]:
    config = model.config
    if config is None:
        return
    cuda, entries = config.optimization.cuda, (*config.input, *config.output)
    if cuda.graph_spec and not cuda.graphs:
        message = "graph_spec is written, and graphs is not on: no CUDA graph is captured"
        yield _broken(GRAPHS, model, message, "write graphs: true", "graph_spec")
    if not cuda.graphs:
        return
    if any(entry.is_shape_tensor for entry in entries):
        message = "no CUDA graph is captured for a model with shape tensors"
        yield _broken(GRAPHS, model, message, "take graphs away, or fix the shapes when the plan is built", "graphs")
        return
    varying = [entry.name for entry in config.input if -1 in inner_dims(entry)]
    if varying and not any(spec.input for spec in cuda.graph_spec):
        message = f"{', '.join(varying)} vary beyond the batch, and no graph_spec says for which shapes to capture"
        yield _broken(GRAPHS, model, message, "write a graph_spec with exact dims for every input", "graphs")


def _arguments(model: ModelFolder, surroundings: CheckContext) -> Iterator[Finding]:
    """Check for required server arguments that are missing."""
    expected: set[str] = set()
    for number in model.loaded:
        if number in model.manifests:
            expected |= {*model.manifests[number].package.server_arguments}
    for argument in sorted(expected):
        setting, _, value = argument.rpartition(",")[2].partition("=")
        has = backend_setting(surroundings, BACKEND, setting)
        if not _names(value) <= _names(has):
            typed = shlex.quote(argument)
            how = f"SAGEMAKER_TRITON_ADDITIONAL_ARGS={argument}" if surroundings.is_for_sagemaker else typed
            yield _broken(
                ARGUMENTS,
                model,
                f"the plan needs a server that is started with {argument}",
                f"start it with {how} (plansmith serve does) and check with --server-argument={typed}",
            )


def _names(value: str) -> set[str]:
    """The names that a setting lists: libraries by file name only, as their folder depends on the server."""
    return {Path(item).name for item in value.split(";")}


def _parameters(model: ModelFolder) -> Iterator[Finding]:
    if model.config is None or _STRATEGY not in model.config.parameters:
        return
    strategy = model.config.parameters[_STRATEGY].string_value
    if strategy not in _STRATEGIES:
        message = f"{_STRATEGY} is {strategy or 'empty'}"
        yield _broken(PARAMETER, model, message, f"write {' or '.join(_STRATEGIES)}", _STRATEGY)


def _copies(model: ModelFolder, facts: PlanFacts) -> Iterator[Finding]:
    count = sum(group.count for group in model.config.instance_group) if model.config is not None else 0
    if count > 1 and any(-1 in tensor.dims for tensor in facts.tensors.values()):
        message = f"{count} instances hold the weights {count} times, as the plan's shapes vary"
        yield _broken(COPIES, model, message, "write count: 1 where memory is short", "count")


def _broken(rule: Rule, model: ModelFolder, message: str, remedy: str, phrase: str = "") -> Finding:
    line = (entry_line(model, phrase) or model.line_of(phrase)) if phrase else 0
    return rule.broken(message, model=model.name, place=model.place(), line=line, remedy=remedy)
