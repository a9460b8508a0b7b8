"""Writing QuantizeLinear and DequantizeLinear pairs into a graph."""

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
    from plansmith.compilers.precision.int8.histogram import Range
    from plansmith.compilers.precision.int8.nodes import Weighted

_SMALLEST_SCALE = float(np.finfo(np.float32).tiny) * 1e4


def scales(weight: NDArray[np.floating], axis: int, form: Format = INT8) -> NDArray[np.float32]:
    """One scale a channel of this axis, such that its largest magnitude becomes the largest code.

    Args:
        weight: any number of axes.
        axis: the one that numbers the channels.
        form: that the weights will be stored in.
    """
    others = tuple(i for i in range(weight.ndim) if i != axis)
    found = np.abs(weight).max(axis=others) / form.largest
    # A channel of zeros: any scale gives zeros back, and 1 cannot overflow what divides by it.
    positive: NDArray[np.float32] = np.where(found > _SMALLEST_SCALE, found, 1.0).astype(np.float32)
    return positive


def quantise(
    weight: NDArray[np.floating], scale: NDArray[np.float32], axis: int, form: Format = INT8
) -> NDArray[np.generic]:
    """The codes of weights with a scale for each channel of this axis."""
    return form.codes(weight / _along(scale, axis, weight.ndim))


def rounded(weight: NDArray[np.float32], axis: int) -> NDArray[np.float32]:
    """What comes back from INT8 with a scale for each channel of this axis."""
    scale = scales(weight, axis)
    back: NDArray[np.float32] = quantise(weight, scale, axis).astype(np.float32) * _along(scale, axis, weight.ndim)
    return back


def _along(scale: NDArray[np.float32], axis: int, ndim: int) -> NDArray[np.float32]:
    return scale.reshape([-1 if i == axis else 1 for i in range(ndim)])


class Pairs:
    """Pairs that are going to be written into one graph, all in one pass: `write` is the last call.

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
        """Let these nodes take a tensor through one pair.

        Returns:
            The tensor that they take now, and the initialiser that holds its scale.
        """
        from onnx import helper

        found = self._ranges[tensor]
        scale, zero = self._form.scale(found.low, found.high)
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
        """Weights as codes with a DequantizeLinear.

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
        """Put all of it into the graph."""
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
