"""The models that ensembles are made of: inputs, outputs and batch as Triton completes them, where that can be told.

An ensemble is compared with the completed configurations of its members, which load first
(src/ensemble_scheduler/ensemble_utils.cc of github.com/triton-inference-server/core).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plansmith.errors import RepositoryError
from plansmith.records.model import Tensor
from plansmith.triton.checker.config_view import completes, data_type, triton_name
from plansmith.triton.checker.model_files import GraphFacts, graph_facts
from plansmith.triton.checker.model_folder import CheckContext, ModelFolder
from plansmith.triton.checker.rules.backends import graph_tensor, onnxruntime

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tritonclient.grpc import model_config_pb2 as pb


@dataclass(frozen=True)
class Port:
    """An input or output as clients of a model see it: `dtype` by Triton's name, dims without the batch."""

    name: str
    dtype: str
    dims: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True)
class Member:
    """A model as an ensemble sees it.

    `inputs`, `outputs`: by name; None where only the running server can tell. `max_batch_size`: likewise.
    """

    name: str
    inputs: Mapping[str, Port] | None
    outputs: Mapping[str, Port] | None
    max_batch_size: int | None
    decoupled: bool


def member_of(model: ModelFolder, surroundings: CheckContext) -> Member:
    """What is known of a model before it is loaded."""
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
    """The ONNX graph that a configuration is completed from; None where there is none."""
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
    """What the backend makes of a graph's tensors; None where the file does not tell all of it."""
    found = {}
    for tensor in tensors:
        if tensor.name not in graph.shaped:
            return None
        dims = [-1 if isinstance(dim, str) else dim for dim in (tensor.dims[1:] if batch else tensor.dims)]
        found[tensor.name] = Port(tensor.name, triton_name(tensor.dtype), tuple(dims or [1]))
    return found
