"""Embedding tables as rows of INT8 with a scale a row."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from plansmith.compilers.precision.int8 import qdq

if TYPE_CHECKING:
    import onnx

    from plansmith.compilers.precision.graph import Graph


class Tables:
    """Lookups that are lowered, and their tables in INT8, made once.

    Args:
        lookups: Gather nodes by name, with the initialiser that each looks up in.
    """

    def __init__(self, lookups: Mapping[str, str]) -> None:
        self.lookups = lookups
        self._made: dict[str, tuple[onnx.TensorProto, onnx.TensorProto]] = {}

    def lower(self, graph: Graph, keep: Collection[str]) -> None:
        """Replace the lookups but for those to keep; weights that nothing takes any more are left to the caller."""
        added: dict[str, tuple[str, str]] = {}
        changes = {}
        for node in graph.model.graph.node:
            table = self.lookups.get(node.name)
            if table is None or node.name in keep:
                continue
            if table not in added:
                rows, scales = self._quantised(graph, table)
                added[table] = (graph.add_tensor(rows), graph.add_tensor(scales))
            changes[node.name] = _lookup(graph, node, *added[table])
        graph.rewrite(changes)

    def _quantised(self, graph: Graph, table: str) -> tuple[onnx.TensorProto, onnx.TensorProto]:
        from onnx import numpy_helper

        if table not in self._made:
            values = graph.floats(table)
            scale = qdq.scales(values, axis=0)
            self._made[table] = (
                numpy_helper.from_array(qdq.quantise(values, scale, axis=0), f"{table}_int8"),
                numpy_helper.from_array(scale[:, None], f"{table}_scale"),
            )
        return self._made[table]


def _lookup(graph: Graph, node: onnx.NodeProto, rows: str, scales: str) -> list[onnx.NodeProto]:
    """Rows and their scales looked up apart: what is multiplied is what was asked for, never the table."""
    from onnx import TensorProto, helper

    wanted, out = node.input[1], node.output[0]
    integers, real, factors = (graph.fresh(f"{out}_{suffix}") for suffix in ("int8", "float", "scale"))
    return [
        helper.make_node("Gather", [rows, wanted], [integers], name=node.name, axis=0),
        helper.make_node("Cast", [integers], [real], to=TensorProto.FLOAT, name=graph.fresh(f"{node.name}_Cast")),
        helper.make_node("Gather", [scales, wanted], [factors], name=graph.fresh(f"{node.name}_scale"), axis=0),
        helper.make_node("Mul", [real, factors], [out], name=graph.fresh(f"{node.name}_scaled")),
    ]
