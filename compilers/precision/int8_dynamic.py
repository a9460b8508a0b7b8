"""INT8 for a CPU with scales computed per request: matrix products and embedding tables, in standard operators."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from plansmith.compilers.precision import int8_weights
from plansmith.compilers.precision.graph import Graph
from plansmith.compilers.precision.int8_nodes import Weighted, attribute
from plansmith.types import Precision

if TYPE_CHECKING:
    import onnx


class Dynamic:
    """Products as DynamicQuantizeLinear and MatMulInteger, embedding tables as rows of INT8 with a scale a row.

    Args:
        model: the smoothed FP32 graph.
        nodes: products that are lowered, as they stand in it.
        tables: lookups that are lowered: node and initialiser.
        kept: nodes that stay high, with the reason.
        settings: what decided the graph.
        weight_bits: 8, or 7 where pairs of products would saturate.
        not_validated: what cannot be tried here.
    """

    name = "INT8, dynamic, per channel"
    precision = Precision.INT8

    def __init__(
        self,
        model: onnx.ModelProto,
        nodes: Sequence[Weighted],
        tables: Mapping[str, str],
        *,
        kept: Mapping[str, str],
        settings: Mapping[str, str],
        weight_bits: int,
        not_validated: tuple[str, ...],
    ) -> None:
        self.kept, self.settings, self.not_validated = kept, settings, not_validated
        self._model, self._bits = model, weight_bits
        self._nodes = {node.name: node for node in nodes}
        self._tables = dict(tables)
        self.lowerable = tuple(n.name for n in model.graph.node if n.name in {*self._nodes, *self._tables})
        self._weights: dict[str, list[onnx.TensorProto]] = {}

    def lower(self, keep: Collection[str]) -> onnx.ModelProto:
        """A copy in which all that is lowerable is INT8 but for `keep`."""
        import onnx

        lowered = [name for name in self.lowerable if name not in keep]
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        graph = Graph(model)
        changes: dict[str, list[onnx.NodeProto]] = {}
        quantised: dict[str, tuple[str, str, str]] = {}
        by_name = {node.name: node for node in model.graph.node}
        for name in lowered:
            if name in self._tables:
                changes[name] = self._lookup(graph, by_name[name])
                continue
            node, new = self._nodes[name], []
            if node.data not in quantised:
                quantised[node.data] = _names(graph, node.data)
                outputs = list(quantised[node.data])
                fresh = graph.fresh(f"{node.data}_DynamicQuantizeLinear")
                new.append(onnx.helper.make_node("DynamicQuantizeLinear", [node.data], outputs, name=fresh))
            changes[name] = new + self._product(graph, by_name[name], node, quantised[node.data])
        graph.rewrite(changes)
        graph.drop_unused_initializers()
        return model

    def runnable(self, lowered: onnx.ModelProto) -> onnx.ModelProto:
        """The graph itself: it is made for ONNX Runtime."""
        return lowered

    def _product(
        self, graph: Graph, node: onnx.NodeProto, found: Weighted, data: tuple[str, str, str]
    ) -> list[onnx.NodeProto]:
        """The sequence that ONNX Runtime fuses into one kernel, scales and bias included."""
        from onnx import TensorProto, helper

        weight, scale = self._quantised_weights(graph, found)
        values, data_scale, zero_point = data
        out = node.output[0]
        bias = found.bias
        total, real, factor = (graph.fresh(f"{out}_{suffix}") for suffix in ("int32", "float", "scale"))
        product = graph.fresh(f"{out}_product") if bias else out
        new = [
            helper.make_node("MatMulInteger", [values, weight, zero_point], [total], name=node.name),
            helper.make_node("Cast", [total], [real], to=TensorProto.FLOAT, name=graph.fresh(f"{node.name}_Cast")),
            helper.make_node("Mul", [data_scale, scale], [factor], name=graph.fresh(f"{node.name}_scale")),
            helper.make_node("Mul", [real, factor], [product], name=graph.fresh(f"{node.name}_scaled")),
        ]
        if not bias:
            return new
        if (beta := attribute(node, "beta", 1.0)) != 1.0:
            bias = graph.add_initializer(f"{bias}_beta", np.float32(beta) * graph.floats(bias))
        return [*new, helper.make_node("Add", [product, bias], [out], name=graph.fresh(f"{node.name}_bias"))]

    def _quantised_weights(self, graph: Graph, node: Weighted) -> tuple[str, str]:
        """Names of the INT8 weights, inputs first, and of their scales; computed once."""
        key = f"{node.weight}:{node.name}"
        if key not in self._weights:
            import onnx

            weight = graph.floats(node.weight)
            weight = weight if node.in_axis == 0 else np.ascontiguousarray(weight.T)
            scale = int8_weights.scales(weight, axis=1, bits=self._bits)
            source = next(n for n in self._model.graph.node if n.name == node.name)
            alpha = np.float32(attribute(source, "alpha", 1.0))
            quantised = int8_weights.quantise(weight, scale, axis=1)
            self._weights[key] = [
                onnx.numpy_helper.from_array(quantised, f"{node.weight}_int8"),
                onnx.numpy_helper.from_array((scale * alpha).astype(np.float32), f"{node.weight}_scale"),
            ]
        names = [graph.add_tensor(tensor) for tensor in self._weights[key]]
        return names[0], names[1]

    def _lookup(self, graph: Graph, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Rows and their scales looked up apart: what is multiplied is what was asked for, never the table."""
        from onnx import TensorProto, helper, numpy_helper

        table, rows, out = node.input[0], node.input[1], node.output[0]
        if table not in self._weights:
            values = graph.floats(table)
            scale = int8_weights.scales(values, axis=0)
            self._weights[table] = [
                numpy_helper.from_array(int8_weights.quantise(values, scale, axis=0), f"{table}_int8"),
                numpy_helper.from_array(scale[:, None], f"{table}_scale"),
            ]
        quantised, scales = (graph.add_tensor(tensor) for tensor in self._weights[table])
        integers, real, factors = (graph.fresh(f"{out}_{suffix}") for suffix in ("int8", "float", "scale"))
        return [
            helper.make_node("Gather", [quantised, rows], [integers], name=node.name, axis=0),
            helper.make_node("Cast", [integers], [real], to=TensorProto.FLOAT, name=graph.fresh(f"{node.name}_Cast")),
            helper.make_node("Gather", [scales, rows], [factors], name=graph.fresh(f"{node.name}_scale"), axis=0),
            helper.make_node("Mul", [real, factors], [out], name=graph.fresh(f"{node.name}_scaled")),
        ]


def _names(graph: Graph, tensor: str) -> tuple[str, str, str]:
    return (graph.fresh(f"{tensor}_uint8"), graph.fresh(f"{tensor}_scale"), graph.fresh(f"{tensor}_zero_point"))
