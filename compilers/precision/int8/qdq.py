"""Q/DQ insertion: writes QuantizeLinear and DequantizeLinear pairs into a graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from plansmith.compilers.precision.int8.format import INT8, Format

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

    from plansmith.compilers.precision.graph import Graph
    from plansmith.compilers.precision.int8.format import Range
    from plansmith.compilers.precision.int8.nodes import Weighted


_SMALLEST_SCALE = float(np.finfo(np.float32).tiny) * 1e4


def scales(weight: NDArray[np.floating], axis: int, form: Format = INT8) -> NDArray[np.float32]:
    """Return one scale per channel of this axis, which maps its largest magnitude to the largest code.

    Args:
        weight: any number of axes.
        axis: the one that numbers the channels.
        form: that the weights will be stored in.
    """
    others = tuple(i for i in range(weight.ndim) if i != axis)
    values = np.abs(weight).max(axis=others) / form.largest
    # A channel of zeros: any scale gives zeros back, and 1 cannot overflow what divides by it.
    positive: NDArray[np.float32] = np.where(values > _SMALLEST_SCALE, values, 1.0).astype(np.float32)
    return positive


def quantise(
    weight: NDArray[np.floating], scale: NDArray[np.float32], axis: int, form: Format = INT8
) -> NDArray[np.generic]:
    """Return the codes of weights with a scale for each channel of this axis."""
    return form.codes(weight / _along(scale, axis, weight.ndim))


def rounded(weight: NDArray[np.float32], axis: int) -> NDArray[np.float32]:
    """Return weights after INT8 quantization with a scale for each channel of this axis."""
    scale = scales(weight, axis)
    back: NDArray[np.float32] = quantise(weight, scale, axis).astype(np.float32) * _along(scale, axis, weight.ndim)
    return back


def _along(scale: NDArray[np.float32], axis: int, ndim: int) -> NDArray[np.float32]:
    return scale.reshape([-1 if i == axis else 1 for i in range(ndim)])


class Pairs:
    """Q/DQ pairs to be written into one graph in one pass: `write` is the last call.

    Args:
        graph: changed in place.
        ranges: what 8 bits cover, by tensor.
        form: that activations are stored in.
    """

    def __init__(self, graph: Graph, ranges: Mapping[str, Range], form: Format) -> None:
        self._graph, self._ranges, self._form = graph, ranges, form
        self._order = {node.name: place for place, node in enumerate(graph.model.graph.node)}
        self._before: defaultdict[str, list[onnx.NodeProto]] = defaultdict(list)
        self._nodes = {node.name: node for node in graph.model.graph.node}

    def activation(self, tensor: str, takers: Collection[str]) -> tuple[str, str]:
        """Add one Q/DQ pair to a tensor for these nodes.

        Returns:
            The tensor that they take now, and the initialiser that holds its scale.
        """
        from onnx import helper

        value_range = self._ranges[tensor]
        scale, zero = self._form.scale(value_range.low, value_range.high)
        graph = self._graph
        scale_name = graph.add_initializer(f"{tensor}_scale", np.array(scale, np.float32))
        zero_name = graph.add_initializer(f"{tensor}_zero_point", np.array(zero, self._form.dtype))
        stored, back = graph.fresh(f"{tensor}_quantised"), graph.fresh(f"{tensor}_dequantised")
        first = min(takers, key=self._order.__getitem__)
        self._before[first] += [
            helper.make_node(
                "QuantizeLinear",
                [tensor, scale_name, zero_name],
                [stored],
                name=graph.fresh(f"{tensor}_QuantizeLinear"),
            ),
            helper.make_node(
                "DequantizeLinear",
                [stored, scale_name, zero_name],
                [back],
                name=graph.fresh(f"{tensor}_DequantizeLinear"),
            ),
        ]
        for taker in takers:
            self._reroute(taker, tensor, back)
        return back, scale_name

    def weights(self, node: Weighted, form: Format, *, bias_scale: float | None = None) -> None:
        """Replace weights by codes with a DequantizeLinear.

        Args:
            node: whose weights.
            form: that they are stored in.
            bias_scale: scale of the data, if the bias becomes INT32; None leaves it FP32.
        """
        graph, weight = self._graph, self._graph.floats(node.weight)
        factors = scales(weight, node.out_axis, form)
        codes = quantise(weight, factors, node.out_axis, form)
        stored = graph.add_initializer(f"{node.weight}_{form.precision}", codes)
        scale = graph.add_initializer(f"{node.weight}_scale", factors)
        zero = graph.add_initializer(f"{node.weight}_zero_point", np.zeros(factors.shape, form.dtype))
        self._dequantise(node, node.weight, (stored, scale, zero), axis=node.out_axis)
        if bias_scale is None or not node.bias:
            return
        steps = (factors.astype(np.float64) * bias_scale).astype(np.float32)
        integers = np.rint(graph.floats(node.bias) / steps)
        # A bias of [1, channels] is one of [channels]; one that differs between rows has no scale per channel.
        if integers.size != steps.size or np.abs(integers).max(initial=0.0) >= np.iinfo(np.int32).max:
            return
        integers = integers.reshape(steps.shape)
        whole = graph.add_initializer(f"{node.bias}_int32", integers.astype(np.int32))
        bias_steps = graph.add_initializer(f"{node.bias}_scale", steps)
        none = graph.add_initializer(f"{node.bias}_zero_point", np.zeros(steps.shape, np.int32))
        self._dequantise(node, node.bias, (whole, bias_steps, none), axis=0)

    def write(self) -> None:
        """Write all pairs into the graph."""
        self._graph.rewrite({name: [*new, self._nodes[name]] for name, new in self._before.items()})
        self._graph.drop_unused_initializers()

    def _dequantise(self, node: Weighted, old: str, inputs: Sequence[str], *, axis: int) -> None:
        from onnx import helper

        back = self._graph.fresh(f"{old}_dequantised")
        name = self._graph.fresh(f"{old}_DequantizeLinear")
        self._before[node.name].append(helper.make_node("DequantizeLinear", inputs, [back], name=name, axis=axis))
        self._reroute(node.name, old, back)

    def _reroute(self, taker: str, old: str, new: str) -> None:
        node = self._nodes[taker]
        for place, name in enumerate(node.input):
            if name == old:
                node.input[place] = new


class Tables:
    """Lookups to lower, with their tables converted to INT8 once.

    Args:
        lookups: Gather nodes by name, with the initialiser that each looks up in.
    """

    def __init__(self, lookups: Mapping[str, str]) -> None:
        self.lookups = lookups
        self._tensors: dict[str, tuple[onnx.TensorProto, onnx.TensorProto]] = {}

    def lower(self, graph: Graph, keep: Collection[str]) -> None:
        """Replace the lookups except those to keep; the caller deletes weights that become unused."""
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

        if table not in self._tensors:
            values = graph.floats(table)
            scale = scales(values, axis=0)
            self._tensors[table] = (
                numpy_helper.from_array(quantise(values, scale, axis=0), f"{table}_int8"),
                numpy_helper.from_array(scale[:, None], f"{table}_scale"),
            )
        return self._tensors[table]


def _lookup(graph: Graph, node: onnx.NodeProto, rows: str, scales: str) -> list[onnx.NodeProto]:
    """Quantized embedding lookup.

    Rows and scales are gathered first, so that only those are multiplied, not the table.
    """
    from onnx import TensorProto, helper

    indices, out = node.input[1], node.output[0]
    integers, real, factors = (graph.fresh(f"{out}_{suffix}") for suffix in ("int8", "float", "scale"))
    return [
        helper.make_node("Gather", [rows, indices], [integers], name=node.name, axis=0),
        helper.make_node("Cast", [integers], [real], to=TensorProto.FLOAT, name=graph.fresh(f"{node.name}_Cast")),
        helper.make_node("Gather", [scales, indices], [factors], name=graph.fresh(f"{node.name}_scale"), axis=0),
        helper.make_node("Mul", [real, factors], [out], name=graph.fresh(f"{node.name}_scaled")),
    ]
