"""Writing a migration into the graph: into what makes the activation where that is free, as a Mul where it is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from plansmith.compilers.precision.int8.nodes import Weighted, attribute

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

    from plansmith.compilers.precision.graph import Graph
    from plansmith.compilers.precision.int8.smoothquant import Migration

    Floats = NDArray[np.float32]

_HEADS_APART = [0, 2, 1, 3]
_TOGETHER = {"MatMul", "Gemm"}


def migrate(graph: Graph, migrations: Sequence[Migration]) -> dict[str, str]:
    """Divide the data and multiply the weights, in place; the graph computes what it did.

    Returns:
        Where each tensor's division went, in words.
    """
    places = {}
    for migration in migrations:
        group, divisors = migration.group, migration.divisors
        for member in group.members:
            _scale(graph, member.weight, member.in_axis, divisors)
        if _into_normalisation(graph, group.data, group.members, divisors):
            places[group.data] = "the normalisation before it"
        elif _into_values(graph, group.data, group.members, divisors):
            places[group.data] = "the columns of the value projection"
        else:
            _as_mul(graph, group.data, group.members, divisors)
            places[group.data] = "a Mul"
    return places


def _into_normalisation(graph: Graph, data: str, members: Sequence[Weighted], divisors: Floats) -> bool:
    """Scale and bias of a normalisation that only these products take."""
    node = graph.producer(data)
    if node is None or node.op_type != "LayerNormalization" or not _only_taken_by(graph, data, members):
        return False
    width = divisors.shape
    parameters = [name for name in node.input[1:] if name]
    values = [graph.constant(name) for name in parameters]
    if any(value is None or value.shape != width for value in values):
        return False
    for place, name in enumerate(parameters, start=1):
        node.input[place] = graph.add_initializer(f"{name}_smooth", graph.floats(name) / divisors)
    graph.rewrite({})
    return True


def _into_values(graph: Graph, data: str, members: Sequence[Weighted], divisors: Floats) -> bool:
    """Columns of the product that makes an attention's values, which only reach these products.

    The context is a weighted mean of the values' rows, channel by channel: what divides a channel of the values
    divides that channel of the context.
    """
    if not _only_taken_by(graph, data, members):
        return False
    product = _up(graph, data, ("Reshape", "Transpose", "MatMul"))
    if product is None or graph.constant(product.input[1]) is not None:
        return False
    values = product.input[1]
    if len(graph.consumers(values)) != 1 or values in graph.outputs:
        return False
    reshape = _up(graph, values, ("Transpose", "Reshape"))
    if reshape is None:
        return False
    return _into_columns(graph, reshape.input[0], divisors)


def _into_columns(graph: Graph, tensor: str, divisors: Floats) -> bool:
    """Columns of a product's weights, and of the bias that is added to it."""
    node, bias = graph.producer(tensor), ""
    if node is not None and node.op_type == "Add":
        constants = [name for name in node.input if graph.constant(name) is not None]
        if len(constants) != 1 or not _is_alone(graph, tensor):
            return False
        bias = constants[0]
        tensor = next(name for name in node.input if name != bias)
        node = graph.producer(tensor)
    if node is None or node.op_type not in _TOGETHER or not _is_alone(graph, tensor):
        return False
    axis = 0 if attribute(node, "transB", 0) else 1
    inner = node.input[2] if len(node.input) > 2 else ""
    weight = graph.constant(node.input[1])
    vectors = [name for name in (bias, inner) if name]
    taken = [node.input[1], *vectors]
    if weight is None or weight.ndim != 2 or weight.shape[axis] != divisors.size:
        return False
    if any(graph.constant(n).shape != divisors.shape for n in vectors):  # type: ignore[union-attr]
        return False
    if any(len(graph.consumers(name)) != 1 for name in taken):
        return False
    inverse = np.reciprocal(divisors)
    _scale(graph, node.input[1], axis, inverse)
    for name in vectors:
        _scale(graph, name, 0, inverse)
    return True


def _as_mul(graph: Graph, data: str, members: Sequence[Weighted], divisors: Floats) -> None:
    import onnx

    factors = graph.add_initializer(f"{data}_smoothing", np.reciprocal(divisors))
    divided = graph.fresh(f"{data}_smooth")
    name = graph.fresh(f"{members[0].name}_smoothing")
    names = {m.name for m in members}
    takers = [node for node in graph.consumers(data) if node.name in names]
    for node in takers:
        node.input[0] = divided
    mul = onnx.helper.make_node("Mul", [data, factors], [divided], name=name)
    graph.rewrite({takers[0].name: [mul, takers[0]]})


def _scale(graph: Graph, name: str, axis: int, factors: Floats) -> None:
    value = graph.floats(name)
    shape = [1] * value.ndim
    shape[axis] = -1
    graph.set_initializer(name, value * factors.reshape(shape))


def _up(graph: Graph, tensor: str, kinds: Sequence[str]) -> onnx.NodeProto | None:
    """The node that these operators lead up to, each with one taker; Transpose only swaps the axes of the heads."""
    node = None
    for kind in kinds:
        node = graph.producer(tensor)
        if node is None or node.op_type != kind:
            return None
        if kind == "Transpose" and list(attribute(node, "perm", [])) != _HEADS_APART:
            return None
        if not _is_alone(graph, tensor) and kind != kinds[0]:
            return None
        tensor = node.input[0]
    return node


def _is_alone(graph: Graph, tensor: str) -> bool:
    return len(graph.consumers(tensor)) == 1 and tensor not in graph.outputs


def _only_taken_by(graph: Graph, tensor: str, members: Sequence[Weighted]) -> bool:
    return tensor not in graph.outputs and {n.name for n in graph.consumers(tensor)} == {m.name for m in members}
