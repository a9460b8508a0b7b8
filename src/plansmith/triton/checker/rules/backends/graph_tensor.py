"""ONNX graph tensors compared with the configuration, as Triton's ONNX Runtime backend does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from plansmith.triton.checker.findings import Finding, Rule
from plansmith.triton.checker.model_files import GraphFacts
from plansmith.triton.checker.model_folder import (
    CheckContext,
    ModelFolder,
    backend_setting,
    completes,
    data_type,
    entry_line,
    format_config_dims,
    generated_inputs,
    has_own_batch,
    inner_dims,
    numpy_name,
    triton_name,
)

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

_SOURCE = "src/onnxruntime.cc of github.com/triton-inference-server/onnxruntime_backend"
_COMMON = "src/backend_common.cc (CompareDimsSupported) of github.com/triton-inference-server/backend"

NAME = Rule("onnxruntime.tensor-name", "error", "configured inputs and outputs are the graph's, by name", _SOURCE)
MISSING = Rule(
    "onnxruntime.missing-input",
    "error",
    "where inputs are configured, every input of the graph that has no default is",
    f"{_SOURCE} (ValidateInputs)",
)
DTYPE = Rule("onnxruntime.dtype", "error", "a tensor has the graph's dtype in the configuration, too", _SOURCE)
RANK = Rule(
    "onnxruntime.rank",
    "error",
    "a tensor has all dims of the graph's, without the first one where max_batch_size is above 0",
    _COMMON,
)
DIMS = Rule(
    "onnxruntime.dims",
    "error",
    "a dim that the graph fixes is the same in the configuration; an output's is -1 nowhere else",
    _COMMON,
)
FREE = Rule(
    "onnxruntime.free-output",
    "warning",
    "an output's dim that the graph leaves open is -1: the backend wants it so, unless ONNX Runtime infers a size",
    _COMMON,
)
FIXED_BATCH = Rule(
    "onnxruntime.fixed-batch",
    "error",
    "with max_batch_size above 0, the first dim of every input and output of the graph is free",
    f"{_COMMON}; AutoCompleteMaxBatch of {_SOURCE}",
)
OPTIONAL = Rule(
    "onnxruntime.optional-input",
    "error",
    "an input is optional where the graph has a default for it, nowhere else, and not at all with batching",
    f"{_SOURCE} (ValidateInputs)",
)
RAGGED = Rule(
    "onnxruntime.ragged-input",
    "error",
    "an input with allow_ragged_batch has one dim in the graph, which is free",
    f"{_SOURCE} (ValidateInputs)",
)
COMPLETED = Rule(
    "onnxruntime.completed-batch",
    "note",
    "a model that can be batched says how far, and does not leave it to the backend's default of 4",
    f"{_SOURCE} (AutoCompleteMaxBatch) and its README (default-max-batch-size)",
)

RULES: tuple[Rule, ...] = (NAME, MISSING, DTYPE, RANK, DIMS, FREE, FIXED_BATCH, OPTIONAL, RAGGED, COMPLETED)

_DEFAULT_BATCH = 4


def check(facts: GraphFacts, number: int, model: ModelFolder, surroundings: CheckContext) -> Iterator[Finding]:
    """Yield differences between a configuration and the graph of one of its versions; nothing without a graph."""
    config = model.config
    if config is None:
        return
    batching = completed_batch(facts, model, surroundings) > 0
    yield from _batch(facts, number, model, surroundings)
    input_names = {*(tensor.name for tensor in facts.inputs), *(tensor.name for tensor in facts.defaults)}
    generated, defaults = generated_inputs(config), {tensor.name for tensor in facts.defaults}
    if config.input:
        config_names = {*(entry.name for entry in config.input), *generated}
        for name in sorted({tensor.name for tensor in facts.inputs} - config_names):
            yield _broken(MISSING, model, number, f"the graph's input {name} is not configured", "add it to input")
    for name in sorted({*generated} - input_names):
        yield _unknown(name, "input", sorted(input_names), model, number)
    for entry in config.input:
        if entry.name not in input_names:
            yield _unknown(entry.name, "input", sorted(input_names), model, number)
        elif problem := _optional_problem(entry, entry.name in defaults, batching=batching):
            message, remedy = problem
            yield _broken(OPTIONAL, model, number, f"{entry.name} {message}", remedy, entry.name)
        else:
            yield from _tensor(entry, facts, number, model, is_input=True, batching=batching)
    outputs = {tensor.name for tensor in facts.outputs}
    for output in config.output:
        if output.name in outputs:
            yield from _tensor(output, facts, number, model, is_input=False, batching=batching)
        else:
            yield _unknown(output.name, "output", sorted(outputs), model, number)


def _optional_problem(entry: pb.ModelInput, has_default: bool, *, batching: bool) -> tuple[str, str] | None:
    """Why an input must or must not be optional, and the remedy; None where it is correct."""
    if entry.optional == has_default and not (has_default and batching):
        return None
    if has_default:
        remedy = "take it out of the configuration" if batching else "write optional: true, or take it out"
        return "has a default in the graph, with which it is optional, and not to be had with batching", remedy
    return "is optional, and the graph has no default for it", "take `optional` away, or give the graph a default"


def completed_batch(facts: GraphFacts, model: ModelFolder, surroundings: CheckContext) -> int:
    """Return the max_batch_size that the backend uses for a graph, as configured or as auto-completed."""
    config = model.config
    if config is not None and (config.max_batch_size > 0 or (config.input and config.output)):
        return int(config.max_batch_size)
    ports = (*facts.inputs, *facts.outputs)
    if not completes(surroundings) or any(t.dims[:1] == () or isinstance(t.dims[0], int) for t in ports):
        return 0
    setting = backend_setting(surroundings, "onnxruntime", "default-max-batch-size")
    return int(setting) if setting.isdecimal() else _DEFAULT_BATCH


def _batch(facts: GraphFacts, number: int, model: ModelFolder, surroundings: CheckContext) -> Iterator[Finding]:
    """Check the batch dims: of the configured tensors, or of all where the backend completes the configuration."""
    config = model.config
    assert config is not None
    complete = bool(config.input) and bool(config.output)
    entries = [entry for entry in (*config.input, *config.output) if not has_own_batch(config, entry)]
    named = {entry.name for entry in entries}
    # Inputs with a default are weights, of which ONNX Runtime asks for none, or break a rule of their own.
    ports = (*facts.inputs, *facts.outputs)
    tensors = [t for t in ports if t.name in facts.shaped and (not complete or t.name in named)]
    stuck = [tensor for tensor in tensors if not tensor.dims or isinstance(tensor.dims[0], int)]
    if config.max_batch_size > 0:
        for tensor in stuck:
            yield _broken(
                FIXED_BATCH,
                model,
                number,
                f"max_batch_size is {config.max_batch_size}, but {tensor.name} has dims"
                f" {format_config_dims(tensor.dims)} in the graph, whose first is not free",
                "write max_batch_size: 0 and dims in full; or export the graph with a dynamic batch",
                tensor.name,
            )
    elif completed_batch(facts, model, surroundings):
        yield _broken(
            COMPLETED,
            model,
            number,
            "max_batch_size is not written, and the backend takes its default, with dynamic batching",
            "write max_batch_size, and inputs and outputs beside it",
        )


def _tensor(
    entry: pb.ModelInput | pb.ModelOutput,
    facts: GraphFacts,
    number: int,
    model: ModelFolder,
    *,
    is_input: bool,
    batching: bool,
) -> Iterator[Finding]:
    """Compare one configured tensor with the graph's."""
    tensor, written = facts.tensors[entry.name], data_type(entry)
    if tensor.dtype == "bfloat16" or numpy_name(written) != tensor.dtype:
        own = triton_name(tensor.dtype) if tensor.dtype != "bfloat16" else ""
        yield _broken(
            DTYPE,
            model,
            number,
            f"{entry.name} is {written}, and {tensor.dtype or 'no tensor'} in the graph",
            f"write data_type: {own}" if own else "cast it inside of the graph: the backend cannot carry it",
            entry.name,
        )
    if tensor.name not in facts.shaped or (batching and tensor.dims[:1] and isinstance(tensor.dims[0], int)):
        return
    if model.config is not None and has_own_batch(model.config, entry):
        if is_input and (len(tensor.dims) != 1 or isinstance(tensor.dims[0], int)):
            message = f"{entry.name} is ragged, and has dims {format_config_dims(tensor.dims)} in the graph"
            remedy = "export the graph so that the samples of a batch follow each other in one free dim"
            yield _broken(RAGGED, model, number, message, remedy, entry.name)
        return
    dims, expected = inner_dims(entry), tensor.dims[1:] if batching else tensor.dims
    if not tensor.dims:
        if batching or all(dim == 1 for dim in dims):
            return
        expected = (1,)
    if len(dims) != len(expected):
        without = ", without the batch" if batching else ", as max_batch_size is 0 or not written"
        yield _broken(
            RANK,
            model,
            number,
            f"{entry.name} has dims {format_config_dims(dims)}, and"
            f" {format_config_dims(expected)} in the graph{without}",
            f"write dims: {_as_dims(expected)}",
            entry.name,
        )
        return
    yield from _sizes(entry.name, dims, expected, number, model, is_input=is_input)


def _sizes(
    name: str, dims: Sequence[int], expected: Sequence[int | str], number: int, model: ModelFolder, *, is_input: bool
) -> Iterator[Finding]:
    pairs = list(zip(dims, expected, strict=True))
    if any(isinstance(its, int) and mine != its for mine, its in pairs):
        rule = DIMS
    elif not is_input and any(isinstance(its, str) and mine != -1 for mine, its in pairs):
        rule = FREE
    else:
        return
    message = f"{name} has dims {format_config_dims(dims)}, and {format_config_dims(expected)} in the graph"
    yield _broken(rule, model, number, message, f"write dims: {_as_dims(expected)}", name)


def _as_dims(expected: Sequence[int | str]) -> str:
    return format_config_dims(-1 if isinstance(dim, str) else dim for dim in expected)


def _unknown(name: str, role: str, names: Sequence[str], model: ModelFolder, number: int) -> Finding:
    return _broken(
        NAME,
        model,
        number,
        f"the graph has no {role} {name}",
        f"name one of its {role}s: {', '.join(names) or 'it has none'}",
        name,
    )


def _broken(rule: Rule, model: ModelFolder, number: int, message: str, remedy: str, name: str = "") -> Finding:
    """A configuration finding, with the version where there are several."""
    version = f" (version {number})" if len(model.loaded) > 1 else ""
    line = entry_line(model, name) if name else 0
    return rule.broken(f"{message}{version}", model=model.name, place=model.place(), line=line, remedy=remedy)
