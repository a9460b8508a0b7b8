"""Weights that lie in files beside an ONNX graph, as the graph itself names them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor that a model stores: initialisers and attributes, those of subgraphs and functions included."""
    yield from _of_graph(model.graph)
    for function in model.functions:
        yield from _of_nodes(function.node)


def locations(model: onnx.ModelProto) -> dict[str, int]:
    """The files that hold external weights, and the size in bytes that each must have at least."""
    found: dict[str, int] = {}
    for tensor in filter(_is_external, tensors(model)):
        facts = {entry.key: entry.value for entry in tensor.external_data}
        place = facts.get("location", "")
        end = int(facts.get("offset") or 0) + int(facts.get("length") or _bytes(tensor))
        found[place] = max(end, found.get(place, 0))
    return found


def relocate(model: onnx.ModelProto, names: Mapping[str, str]) -> None:
    """Have a model look for its external weights under other names: old to new."""
    for tensor in filter(_is_external, tensors(model)):
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = names[entry.value]


def _is_external(tensor: onnx.TensorProto) -> bool:
    return tensor.data_location == tensor.EXTERNAL


def _of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for attribute in chain.from_iterable(node.attribute for node in nodes):
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield from _of_graph(graph)


def _bytes(tensor: onnx.TensorProto) -> int:
    import onnx

    return math.prod(tensor.dims) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
