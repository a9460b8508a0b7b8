"""INT8 for a CPU with scales fixed beforehand: Q/DQ pairs that ONNX Runtime turns into its integer kernels.

A convolution is only run in integers if its output is quantised too, so pairs follow the data from one convolution to
the next, through sums, pools and what merely moves values. A matrix product gives floats by itself: what comes after it
in a transformer wants them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from plansmith.compilers.precision.calibration import observe
from plansmith.compilers.precision.graph import Graph
from plansmith.compilers.precision.int8.embedding_tables import Tables
from plansmith.compilers.precision.int8.format import INT8, UINT8
from plansmith.compilers.precision.int8.histogram import Histogram, Range, choose, told
from plansmith.compilers.precision.int8.nodes import Weighted
from plansmith.compilers.precision.int8.qdq import Pairs
from plansmith.records.model import Precision

if TYPE_CHECKING:
    import onnx

    from plansmith.compilers.precision.int8.smoothed_graph import Smoothed
    from plansmith.config.precision import Calibration
    from plansmith.data.reference import StoredCases

_ACTIVATIONS = {"Relu", "Clip"}
_MOVING = {"MaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze"}
_COMPUTING = {"Add", "Concat", "AveragePool", "GlobalAveragePool"}
_ENDING = {"AveragePool", "GlobalAveragePool"}


@dataclass
class Plan:
    """Which tensors get a pair and who takes them through it.

    Attributes:
        takers: by tensor, the names of the nodes that take what comes back from INT8.
        same: tensors that hold another's values, moved: they share its range.
    """

    takers: dict[str, list[str]] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)


class Static:
    """Q/DQ pairs for ONNX Runtime's CPU kernels.

    Args:
        smoothed: the FP32 graph.
        nodes: those that are lowered, as they stand in it.
        tables: lookups that are lowered.
        ranges: what 8 bits cover, by tensor.
        kept: nodes that stay high, with the reason.
        weight_bits: 8, or 7 where pairs of products would saturate.
        not_validated: what cannot be tried here.
    """

    name = "INT8, static Q/DQ"
    precision = Precision.INT8

    def __init__(
        self,
        smoothed: Smoothed,
        nodes: Sequence[Weighted],
        tables: Tables,
        ranges: Mapping[str, Range],
        *,
        kept: Mapping[str, str],
        weight_bits: int,
        not_validated: tuple[str, ...],
    ) -> None:
        self._model, self._ranges, self._bits = smoothed.model, ranges, weight_bits
        self._nodes = {node.name: node for node in nodes}
        self.kept, self.not_validated = kept, not_validated
        self._tables = tables
        self.lowerable = tuple(n.name for n in smoothed.model.graph.node if n.name in {*self._nodes, *tables.lookups})
        self.settings: Mapping[str, str] = {
            "activations": "unsigned 8 bits, a scale and zero point per tensor",
            "weights": f"{weight_bits} bits, symmetric, a scale per output channel",
            "tables": "8 bits, symmetric, a scale per row",
            "calibration": told(ranges),
            "smoothing": smoothed.how,
        }

    def lower(self, keep: Collection[str]) -> onnx.ModelProto:
        """A copy in which all that is lowerable has its pairs but for `keep`."""
        import onnx

        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        graph = Graph(model)
        lowered = [node for name, node in self._nodes.items() if name not in keep]
        plan = plan_pairs(graph, lowered)
        pairs = Pairs(graph, self._ranges, UINT8)
        for tensor, takers in plan.takers.items():
            pairs.activation(tensor, takers)
        for node in lowered:
            found = self._ranges[node.data]
            bias_scale = UINT8.scale(found.low, found.high)[0] if node.op != "MatMul" else None
            pairs.weights(node, INT8.narrowed(self._bits), bias_scale=bias_scale)
        pairs.write()
        self._tables.lower(graph, keep)
        graph.drop_unused_initializers()
        return model

    def runnable(self, lowered: onnx.ModelProto) -> onnx.ModelProto:
        """The graph itself: it is made for ONNX Runtime."""
        return lowered


def measure(
    model: onnx.ModelProto,
    nodes: Sequence[Weighted],
    samples: StoredCases,
    calibration: Calibration,
    *,
    mask_input: str | None,
) -> dict[str, Range]:
    """The ranges of all tensors that get a pair if all of these nodes are lowered."""
    plan = plan_pairs(Graph(model), nodes)
    histograms = {tensor: Histogram() for tensor in plan.takers if tensor not in plan.same}
    observe(model, samples, histograms, mask_input=mask_input)
    ranges = {tensor: choose(histogram, calibration, UINT8) for tensor, histogram in histograms.items()}
    for tensor in plan.same:
        source = tensor
        while source in plan.same:
            source = plan.same[source]
        ranges[tensor] = ranges[source]
    return ranges


def plan_pairs(graph: Graph, lowered: Sequence[Weighted]) -> Plan:
    """Pairs for the data of lowered nodes, and along the way from one convolution to the next."""
    plan = Plan()
    weighted = {node.name: node for node in lowered}
    stored: set[str] = set()
    for node in graph.model.graph.node:
        found = weighted.get(node.name)
        if found is not None:
            if found.data not in stored:
                plan.takers.setdefault(found.data, []).append(node.name)
            if not found.is_product:
                stored |= _stored(graph, node, plan)
        elif node.op_type in _MOVING | _COMPUTING:
            data = [name for name in node.input if name and graph.constant(name) is None]
            data = data[:1] if node.op_type in _MOVING else data
            if data and all(name in stored for name in data) and len(data) == _operands(node):
                made = _stored(graph, node, plan)
                stored |= made
                if node.op_type in _MOVING:
                    plan.same |= dict.fromkeys(made & set(node.output), data[0])
    _drop_ends(graph, plan, stored, set(weighted))
    return plan


def _drop_ends(graph: Graph, plan: Plan, stored: set[str], lowered: set[str]) -> None:
    """Forget pairs behind moves and pools at the end of a chain: who takes them wants floats."""
    for node in reversed(graph.model.graph.node):
        tensor = node.output[0] if node.output else ""
        if node.op_type not in _MOVING | _ENDING or tensor not in stored:
            continue
        takers = graph.consumers(tensor)
        if not any(t.name in lowered or (t.output and stored & set(t.output)) for t in takers):
            stored.discard(tensor)
            plan.same.pop(tensor, None)
            del plan.takers[tensor]


def _stored(graph: Graph, node: onnx.NodeProto, plan: Plan) -> set[str]:
    """The tensor that holds a node's result in INT8, behind the activation that fuses into it; all take it so."""
    tensor = node.output[0]
    takers = graph.consumers(tensor)
    if len(takers) == 1 and takers[0].op_type in _ACTIVATIONS and tensor not in graph.outputs:
        tensor = takers[0].output[0]
    takers = [taker for taker in graph.consumers(tensor) if tensor in taker.input]  # a body takes the floats
    if tensor in graph.outputs or not takers:
        return set()
    plan.takers[tensor] = [taker.name for taker in takers]
    return {tensor}


def _operands(node: onnx.NodeProto) -> int:
    """How many inputs carry values: all but the shapes and axes of what moves them."""
    return 1 if node.op_type in _MOVING else len(node.input)
