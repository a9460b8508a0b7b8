"""INT8 for a CPU with scales computed per request: matrix products and embedding tables, in standard operators."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from plansmith.compilers.precision.graph import Graph
from plansmith.compilers.precision.int8 import qdq
from plansmith.compilers.precision.int8.embedding_tables import Tables
from plansmith.compilers.precision.int8.format import INT8
from plansmith.compilers.precision.int8.nodes import Weighted, attribute
from plansmith.records.model import Precision

if TYPE_CHECKING:
    import onnx

    from plansmith.compilers.precision.int8.smoothed_graph import Smoothed


class Dynamic:
    """Products as DynamicQuantizeLinear and MatMulInteger, embedding tables as rows of INT8 with a scale a row.

    Args:
        smoothed: the FP32 graph.
        nodes: products that are lowered, as they stand in it.
        tables: lookups that are lowered.
        kept: nodes that stay high, with the reason.
        weight_bits: 8, or 7 where pairs of products would saturate.
        not_validated: what cannot be tried here.
    """

    name = "INT8, dynamic, per channel"
    precision = Precision.INT8

    def __init__(
        self,
        smoothed: Smoothed,
        nodes: Sequence[Weighted],
        tables: Tables,
        *,
        kept: Mapping[str, str],
        weight_bits: int,
        not_validated: tuple[str, ...],
    ) -> None:
        self.kept, self.not_validated = kept, not_validated
        self.settings: Mapping[str, str] = {
            "activations": "unsigned 8 bits, a scale and zero point per tensor and request, for all rows of a batch",
            "weights": f"{weight_bits} bits, symmetric, a scale per output channel",
            "tables": "8 bits, symmetric, a scale per row",
            "smoothing": smoothed.how,
            "clipping": f"data of {len(smoothed.limits)} products, whose range padding widens",
        }
        self._model, self._bits, self._limits = smoothed.model, weight_bits, smoothed.limits
        self._nodes = {node.name: node for node in nodes}
        self._tables = tables
        self.lowerable = tuple(n.name for n in self._model.graph.node if n.name in {*self._nodes, *tables.lookups})
        self._weights: dict[str, list[onnx.TensorProto]] = {}

    def lower(self, keep: Collection[str]) -> onnx.ModelProto:
        """A copy in which all that is lowerable is INT8 but for `keep`."""
        import onnx

        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        graph = Graph(model)
        changes: dict[str, list[onnx.NodeProto]] = {}
        quantised: dict[str, tuple[str, str, str]] = {}
        by_name = {node.name: node for node in model.graph.node}
        for name, node in self._nodes.items():
            if name in keep:
                continue
            new: list[onnx.NodeProto] = []
            if node.data not in quantised:
                quantised[node.data] = _names(graph, node.data)
                new = self._quantise(graph, node, quantised[node.data])
            changes[name] = new + self._product(graph, by_name[name], node, quantised[node.data])
        graph.rewrite(changes)
        self._tables.lower(graph, keep)
        graph.drop_unused_initializers()
        return model

    def runnable(self, lowered: onnx.ModelProto) -> onnx.ModelProto:
        """The graph itself: it is made for ONNX Runtime."""
        return lowered

    def _quantise(self, graph: Graph, node: Weighted, results: tuple[str, str, str]) -> list[onnx.NodeProto]:
        """Scales from the request, without what only padding reaches."""
        from onnx import helper

        data, new = node.data, []
        if node.name in self._limits:
            ends = [
                graph.add_initializer(f"{node.data}_{side}", np.array(value, np.float32))
                for side, value in zip(("lowest", "highest"), self._limits[node.name], strict=True)
            ]
            data = graph.fresh(f"{node.data}_clipped")
            new.append(helper.make_node("Clip", [node.data, *ends], [data], name=graph.fresh(f"{node.data}_Clip")))
        name = graph.fresh(f"{node.data}_DynamicQuantizeLinear")
        return [*new, helper.make_node("DynamicQuantizeLinear", [data], list(results), name=name)]

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
            scale = qdq.scales(weight, 1, INT8.narrowed(self._bits))
            source = next(n for n in self._model.graph.node if n.name == node.name)
            alpha = np.float32(attribute(source, "alpha", 1.0))
            quantised = qdq.quantise(weight, scale, axis=1)
            self._weights[key] = [
                onnx.numpy_helper.from_array(quantised, f"{node.weight}_int8"),
                onnx.numpy_helper.from_array((scale * alpha).astype(np.float32), f"{node.weight}_scale"),
            ]
        names = [graph.add_tensor(tensor) for tensor in self._weights[key]]
        return names[0], names[1]


def _names(graph: Graph, tensor: str) -> tuple[str, str, str]:
    return (graph.fresh(f"{tensor}_uint8"), graph.fresh(f"{tensor}_scale"), graph.fresh(f"{tensor}_zero_point"))
