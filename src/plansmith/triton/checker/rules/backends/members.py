"""Ensemble members: inputs, outputs and batch size as Triton completes them, where that is known.

An ensemble is compared with the completed configurations of its members, which load first
(src/ensemble_scheduler/ensemble_utils.cc of github.com/triton-inference-server/core).
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from plansmith.errors import RepositoryError
from plansmith.pipelines.served.requests import SCRIPT_FILE, SETTINGS_FILE
from plansmith.records.model import Tensor
from plansmith.triton.checker.findings import Finding, Rule
from plansmith.triton.checker.model_files import GraphFacts, find_class, graph_facts, read_source, takes, top_level
from plansmith.triton.checker.model_folder import CheckContext, ModelFolder, completes, data_type, triton_name
from plansmith.triton.checker.rules.backends import graph_tensor, onnxruntime
from plansmith.triton.checker.rules.backends.python import unparsed
from plansmith.triton.config.ensemble import MEMBERS_PARAMETER
from plansmith.triton.config.script import Chain, ChainStep
from plansmith.triton.repository.ensembles import members_of_script

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tritonclient.grpc import model_config_pb2 as pb

_README = "README.md of github.com/triton-inference-server/python_backend (Business Logic Scripting)"
_CONTROL = "docs/user_guide/model_management.md of github.com/triton-inference-server/server (--load-model)"
_OWN = "pipeline/served of plansmith, which carries a script's chains out"
MEMBER = Rule("script.member", "error", "every model that a script asks is in the repository", _README)
NAMED = Rule(
    "script.parameter",
    "error",
    f"the parameter {MEMBERS_PARAMETER} names every model that a script asks, as Triton loads none of them by itself",
    _OWN,
)
LOADED = Rule(
    "script.loaded", "error", "a server that loads named models is told to load those that a script asks", _CONTROL
)
SAGEMAKER = Rule(
    "script.sagemaker",
    "warning",
    "an endpoint of a script is told to load the models that it asks; one with many models cannot be",
    "docker/sagemaker/serve of github.com/triton-inference-server/server (SAGEMAKER_TRITON_ADDITIONAL_ARGS)",
)
SETTINGS = Rule("script.settings", "error", f"the script's {SETTINGS_FILE} tells its chains and outputs", _OWN)
PROGRAM = Rule(
    "script.program", "error", f"{SCRIPT_FILE} is there, can be parsed, and has answer(inputs, models)", _OWN
)
MAPPED = Rule(
    "script.mapping",
    "error",
    "the steps of a chain name inputs and outputs that their models have, and every input that is not optional",
    f"{_OWN}; {_README}",
)
ONCE = Rule("script.decoupled", "error", "the models that a script asks answer a request once", _README)
BATCH = Rule(
    "script.batch-size",
    "warning",
    "a script's max_batch_size is at most that of each model that it asks, which would refuse what is larger",
    _README,
)
RULES: tuple[Rule, ...] = (MEMBER, NAMED, LOADED, SAGEMAKER, SETTINGS, PROGRAM, MAPPED, ONCE, BATCH)
_FUNCTION = "answer"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_CHAINS = TypeAdapter(dict[str, Chain])


@dataclass(frozen=True)
class Port:
    """An input or output as clients see it: `dtype` is Triton's name, dims exclude the batch."""

    name: str
    dtype: str
    dims: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True)
class Member:
    """Ensemble member: a model as an ensemble sees it.

    `inputs`, `outputs`: by name; None where only the running server can tell. `max_batch_size`: likewise.
    """

    name: str
    inputs: Mapping[str, Port] | None
    outputs: Mapping[str, Port] | None
    max_batch_size: int | None
    decoupled: bool


def member_of(model: ModelFolder, surroundings: CheckContext) -> Member:
    """Return what is known about a model before it is loaded."""
    config, graph = model.config, _graph(model, surroundings)
    inputs = _ports(config.input) if config is not None and config.input else None
    outputs = _ports(config.output) if config is not None and config.output else None
    batch: int | None = config.max_batch_size if config is not None else 0
    if inputs is None or outputs is None or (not batch and model.backend == "tensorrt"):
        batch = batch or None
    if graph is not None and (inputs is None or outputs is None):
        batch = graph_tensor.completed_batch(graph, model, surroundings)
        inputs = inputs if inputs is not None else _graph_ports(graph.inputs, graph, batch)
        outputs = outputs if outputs is not None else _graph_ports(graph.outputs, graph, batch)
    decoupled = config is not None and config.model_transaction_policy.decoupled
    return Member(model.name, inputs, outputs, batch, decoupled)


def _graph(model: ModelFolder, surroundings: CheckContext) -> GraphFacts | None:
    """The ONNX graph that completes the configuration; None where there is none."""
    if model.backend != onnxruntime.BACKEND or not model.loaded or not completes(surroundings):
        return None
    path = onnxruntime.graph_file(model, max(model.loaded))
    try:
        return graph_facts(path) if path is not None else None
    except RepositoryError:
        return None


def _ports(entries: Iterable[pb.ModelInput | pb.ModelOutput]) -> dict[str, Port]:
    return {
        entry.name: Port(entry.name, data_type(entry), tuple(entry.dims), bool(getattr(entry, "optional", False)))
        for entry in entries
    }


def _graph_ports(tensors: Iterable[Tensor], graph: GraphFacts, batch: int) -> dict[str, Port] | None:
    """The ports the backend derives from a graph's tensors; None where the file does not define all of them."""
    ports = {}
    for tensor in tensors:
        if tensor.name not in graph.shaped:
            return None
        dims = [-1 if isinstance(dim, str) else dim for dim in (tensor.dims[1:] if batch else tensor.dims)]
        ports[tensor.name] = Port(tensor.name, triton_name(tensor.dtype), tuple(dims or [1]))
    return ports


def check(model: ModelFolder, surroundings: CheckContext) -> Iterator[Finding]:
    """Yield rule violations of a script that calls other models (BLS); nothing for other models."""
    config = model.config
    if config is None or MEMBERS_PARAMETER not in config.parameters:
        return
    named = members_of_script(config)
    for name in named:
        if name not in surroundings.models:
            yield _broken(MEMBER, model, f"the repository has no model {name}", "put it there, or publish again", name)
        elif surroundings.loads(model.name) and not surroundings.loads(name):
            message = f"{name}, which the script asks, is not loaded with it"
            yield _broken(LOADED, model, message, f"start the server with --load-model={name} too", name)
    missing = [name for name in named if name not in surroundings.argument("load-model")]
    if surroundings.is_for_sagemaker and missing:
        message = "the start script loads one model, and Triton does not load what the script of that one asks"
        options = " ".join(f"--load-model={name}" for name in missing)
        remedy = f"set SAGEMAKER_TRITON_ADDITIONAL_ARGS={options!r} in the endpoint's environment"
        yield _broken(SAGEMAKER, model, message, remedy, MEMBERS_PARAMETER)
    for number in model.loaded:
        if (model.versions[number] / SETTINGS_FILE).is_file():  # else it is somebody else's program
            yield from _version(model, number, surroundings)


def _version(model: ModelFolder, number: int, surroundings: CheckContext) -> Iterator[Finding]:
    folder, place = model.versions[number], model.place(f"{number}/{SETTINGS_FILE}")
    try:
        chains = _CHAINS.validate_python(json.loads((folder / SETTINGS_FILE).read_text())["chains"])
    except (ValueError, KeyError, TypeError, RecursionError, ValidationError) as error:
        message = f"it cannot be read: {str(error).splitlines()[0]}"
        yield SETTINGS.broken(message, model=model.name, place=place, remedy="compile the model again")
        return
    assert model.config is not None
    model_names = {step.model for chain in chains.values() for step in chain.steps}
    for name in sorted(model_names - {*members_of_script(model.config)}):
        message = f"{MEMBERS_PARAMETER} does not name {name}, which the script asks"
        yield _broken(NAMED, model, message, f"add {name} to it", MEMBERS_PARAMETER)
    members = {
        name: member_of(surroundings.models[name], surroundings)
        for name in sorted(model_names & surroundings.models.keys())
    }
    yield from _members(model, members)
    for chain, step in [(chain, step) for chain, settings in chains.items() for step in settings.steps]:
        for message in _mismatches(step, members[step.model]) if step.model in members else ():
            settings = f"chain {chain!r}: {message}"
            yield MAPPED.broken(settings, model=model.name, place=place, remedy="compile the model again")
    yield from _program(model, number, surroundings)


def _members(model: ModelFolder, members: Mapping[str, Member]) -> Iterator[Finding]:
    assert model.config is not None
    own = model.config.max_batch_size
    for name, member in members.items():
        if member.decoupled:
            message = f"{name} is decoupled, and a script is given one answer to each request"
            yield _broken(ONCE, model, message, "have it answer once", name)
        if member.max_batch_size and member.max_batch_size < own:
            message = f"max_batch_size is {own}, and {name} takes {member.max_batch_size} at most"
            yield _broken(BATCH, model, message, f"write max_batch_size: {member.max_batch_size}", "max_batch_size")


def _mismatches(step: ChainStep, member: Member) -> Iterator[str]:
    """Yield the mismatches of a step: tensors that its model does not have, and tensors it leaves out."""
    sides: tuple[tuple[str, dict[str, str], Mapping[str, Any] | None], ...] = (
        ("input", step.inputs, member.inputs),
        ("output", step.outputs, member.outputs),
    )
    for role, mapped, ports in sides:
        for name in sorted({*mapped} - {*ports}) if ports is not None else ():
            yield f"{member.name} has no {role} {name}; it has {', '.join(sorted(ports or ())) or 'none'}"
    for name, port in sorted((member.inputs or {}).items()):
        if not port.optional and name not in step.inputs:
            yield f"the input {name} of {member.name} is not given"


def _program(model: ModelFolder, number: int, surroundings: CheckContext) -> Iterator[Finding]:
    path, place = model.versions[number] / SCRIPT_FILE, model.place(f"{number}/{SCRIPT_FILE}")
    if not path.is_file():
        message = f"there is no {SCRIPT_FILE}"
        yield PROGRAM.broken(message, model=model.name, place=place, remedy="put it there, or compile the model again")
        return
    source = read_source(path, surroundings.target.python if surroundings.target is not None else None)
    if source.tree is None:
        yield unparsed(source, model, place, PROGRAM)
        return
    functions = [
        function
        for function in top_level(source.tree.body)
        if isinstance(function, _FUNCTIONS) and function.name == _FUNCTION
    ]
    line = functions[-1].lineno if functions else 0
    if functions and not (isinstance(functions[-1], ast.FunctionDef) and takes(functions[-1], 2, on_class=True)):
        message = f"{_FUNCTION} cannot be called with two arguments for its answer"
    elif not functions and find_class(source.tree, _FUNCTION) == "nowhere":
        message = f"there is no function {_FUNCTION}"
    else:
        return
    remedy = f"write def {_FUNCTION}(inputs, models)"
    yield PROGRAM.broken(message, model=model.name, place=place, line=line, remedy=remedy)


def _broken(rule: Rule, model: ModelFolder, message: str, remedy: str, phrase: str) -> Finding:
    return model.faulted(rule, message, phrase, remedy=remedy)
