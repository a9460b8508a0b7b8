"""Quantizable nodes: which nodes have weights that fit 8 bits, and which always stay in high precision."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plansmith.compilers.precision.graph import Graph, attribute

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from numpy.typing import NDArray

_PRODUCTS = {"MatMul", "Gemm"}
_CONVOLUTIONS = {"Conv", "ConvTranspose"}
WEIGHTED = _PRODUCTS | _CONVOLUTIONS

# What lies between the last weighted node and an output without making it anything but the head.
_AFTER_HEAD = {"Add", "Softmax", "LogSoftmax", "Sigmoid", "Tanh", "Relu", "Clip", "Mul", "Div", "Identity", "Cast"}
_AFTER_HEAD |= {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Split", "Slice", "Gather", "Elu"}

SMALLEST_SIDE = 16
"""Products with fewer inputs or outputs than this run as fast in FP32."""

LARGE_TABLE_ELEMENTS = 1 << 16
"""Embedding tables from this size on are worth a lookup of scales beside the lookup of rows."""


@dataclass(frozen=True)
class Weighted:
    """A node with constant weights.

    Attributes:
        name: of the node.
        op: its operator.
        data: the tensor that it multiplies with its weights.
        weight: the initialiser that holds the weights.
        bias: the initialiser that it adds by itself; empty for none.
        in_axis: the axis of the weights that is summed over.
        out_axis: the axis of the weights that numbers the output channels.
        groups: of a convolution; 1 for all else.
    """

    name: str
    op: str
    data: str
    weight: str
    bias: str
    in_axis: int
    out_axis: int
    groups: int = 1

    @property
    def is_product(self) -> bool:
        """Whether it is a matrix product, not a convolution."""
        return self.op in _PRODUCTS


def make_weights_constant(graph: Graph) -> None:
    """Convert weights that Constant, Identity or Transpose nodes produce from constants to initializers."""
    for node in graph.model.graph.node:
        place = 0 if node.op_type == "Gather" else 1
        if node.op_type not in {*WEIGHTED, "Gather"} or len(node.input) <= place:
            continue
        name = node.input[place]
        if graph.producer(name) is not None and (value := _folded(graph, name)) is not None and value.dtype.kind == "f":
            node.input[place] = graph.add_initializer(f"{name}_folded", value)
    graph.rewrite({})
    _drop_dead(graph)


def find_weighted(graph: Graph) -> tuple[list[Weighted], dict[str, str]]:
    """Return the nodes with constant weights, and similar ones kept in FP32 with reasons; in the graph's order."""
    weighted, reasons = [], {}
    for node in graph.model.graph.node:
        if node.op_type not in WEIGHTED:
            continue
        weight = graph.constant(node.input[1])
        if weight is None and graph.constant(node.input[0]) is None:
            reasons[node.name] = "both operands are computed, as in attention"
        elif weight is None:
            reasons[node.name] = "its constant is the left operand"
        elif reason := _reason(graph, node, weight):
            reasons[node.name] = reason
        else:
            weighted.append(_weighted(node))
    return weighted, reasons


def find_tables(graph: Graph) -> Iterator[tuple[str, str]]:
    """Yield lookups in large embedding tables: the node's name and the initializer."""
    for node in graph.model.graph.node:
        if node.op_type == "Gather" and attribute(node, "axis", 0) == 0:
            table = graph.constant(node.input[0])
            if table is None or table.dtype != "float32" or table.ndim != 2:
                continue
            if table.size >= LARGE_TABLE_ELEMENTS and table.shape[1] >= SMALLEST_SIDE:
                yield node.name, node.input[0]


def find_heads(graph: Graph) -> set[str]:
    """Return the names of the output layers: weighted nodes with no normalization or residual sum after them."""
    heads = set()
    for output in graph.outputs:
        node = graph.producer(output)
        while node is not None and node.op_type not in WEIGHTED:
            computed = [name for name in node.input if name and graph.constant(name) is None]
            ends = node.op_type not in _AFTER_HEAD or (node.op_type in {"Add", "Mul", "Div"} and len(computed) > 1)
            node = None if ends or not computed else graph.producer(computed[0])
        if node is not None:
            heads.add(node.name)
    return heads


def nodes_kept_by_spec(names: Collection[str], patterns: Sequence[str]) -> dict[str, str]:
    """Return the nodes among `names` that a spec's regular expressions match in full."""
    return {
        name: f"kept by the spec: {pattern}"
        for pattern in reversed(patterns)
        for name in names
        if re.fullmatch(pattern, name)
    }


def weights_share(graph: Graph, nodes: Sequence[Weighted]) -> Mapping[str, float]:
    """Return each node's fraction of all weights, by name."""
    total = sum(math.prod(t.dims) for t in graph.model.graph.initializer) or 1
    return {node.name: graph.floats(node.weight).size / total for node in nodes}


def _reason(graph: Graph, node: onnx.NodeProto, weight: NDArray[np.generic]) -> str:
    """Why a node with constant weights stays high nevertheless; empty where it does not."""
    reasons = {
        f"its weights are {weight.dtype}": weight.dtype != "float32",
        "both operands are constant": graph.constant(node.input[0]) is not None,
    }
    if node.op_type in _PRODUCTS:
        reasons |= {
            f"its weights have {weight.ndim} axes": weight.ndim != 2,
            f"too small to gain anything: {weight.shape}": min(weight.shape) < SMALLEST_SIDE,
        }
    if node.op_type == "Gemm":
        bias = node.input[2] if len(node.input) > 2 else ""
        reasons |= {
            "its left operand is transposed": bool(attribute(node, "transA", 0)),
            "its bias is computed": bool(bias) and graph.constant(bias) is None,
        }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _weighted(node: onnx.NodeProto) -> Weighted:
    out_axis = {"MatMul": 1, "Conv": 0, "ConvTranspose": 1}.get(node.op_type)
    if out_axis is None:
        out_axis = 0 if attribute(node, "transB", 0) else 1
    return Weighted(
        name=node.name,
        op=node.op_type,
        data=node.input[0],
        weight=node.input[1],
        bias=node.input[2] if len(node.input) > 2 else "",
        in_axis=1 - out_axis,
        out_axis=out_axis,
        groups=attribute(node, "group", 1),
    )


def _folded(graph: Graph, name: str) -> NDArray[np.generic] | None:
    import numpy as np

    if (value := graph.constant(name)) is not None:
        return value
    node = graph.producer(name)
    if node is None or node.op_type not in {"Identity", "Transpose"}:
        return None
    value = _folded(graph, node.input[0])
    if value is None or node.op_type == "Identity":
        return value
    return np.ascontiguousarray(value.transpose(attribute(node, "perm", None)))


def _drop_dead(graph: Graph) -> None:
    """Remove nodes that have no consumer after folding."""
    while dead := {
        node.name: ()
        for node in graph.model.graph.node
        if node.op_type in {"Constant", "Identity", "Transpose"}
        and not any(graph.consumers(name) or name in graph.outputs for name in node.output)
    }:
        graph.rewrite(dead)
    graph.drop_unused_initializers()
