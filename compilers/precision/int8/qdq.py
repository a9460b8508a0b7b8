"""Writing QuantizeLinear and DequantizeLinear pairs into a graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

    from plansmith.compilers.precision.graph import Graph
    from plansmith.compilers.precision.int8.histogram import Range
    from plansmith.compilers.precision.int8.nodes import Weighted

_SMALLEST_SCALE = float(np.finfo(np.float32).tiny) * 1e4


def scales(weight: NDArray[np.floating], axis: int, *, bits: int = 8) -> NDArray[np.float32]:
    """One scale a channel of this axis, such that its largest magnitude becomes the largest integer.

    Args:
        weight: any number of axes.
        axis: the one that numbers the channels.
        bits: how many bits are used; 8 means -127 to 127.
    """
    others = tuple(i for i in range(weight.ndim) if i != axis)
    largest = np.abs(weight).max(axis=others)
    found = largest / (2 ** (bits - 1) - 1)
    # A channel of zeros: any scale gives zeros back, and 1 cannot overflow what divides by it.
    positive: NDArray[np.float32] = np.where(found > _SMALLEST_SCALE, found, 1.0).astype(np.float32)
    return positive


def quantise(weight: NDArray[np.floating], scale: NDArray[np.float32], axis: int) -> NDArray[np.int8]:
    """Round to the nearest integer of each channel's scale; ties to even, as QuantizeLinear does."""
    shape = [1] * weight.ndim
    shape[axis] = -1
    integers: NDArray[np.int8] = np.rint(weight / scale.reshape(shape)).clip(-128, 127).astype(np.int8)
    return integers


def rounded(weight: NDArray[np.float32], axis: int, *, bits: int = 8) -> NDArray[np.float32]:
    """What comes back from INT8."""
    scale = scales(weight, axis, bits=bits)
    shape = [1] * weight.ndim
    shape[axis] = -1
    scale = scale.reshape(shape)
    back: NDArray[np.float32] = np.rint(weight / scale) * scale
    return back


Bytes = Literal["signed", "unsigned"]


class Pairs:
    """Pairs that are going to be written into one graph, all in one pass: `write` is the last call.

    Args:
        graph: changed in place.
        ranges: what 8 bits cover, by tensor.
        kind: signed bytes with zero point 0, or unsigned ones from the lowest value to the highest.
    """

    def __init__(self, graph: Graph, ranges: Mapping[str, Range], kind: Bytes) -> None:
        self._graph, self._ranges, self._kind = graph, ranges, kind
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
        scale, zero = found.symmetric() if self._kind == "signed" else found.asymmetric()
        graph = self._graph
        scale_name = graph.add_initializer(f"{tensor}_scale", np.array(scale, np.float32))
        dtype = np.int8 if self._kind == "signed" else np.uint8
        zero_name = graph.add_initializer(f"{tensor}_zero_point", np.array(zero, dtype))
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

    def weights_quantised_by_engine(self, node: Weighted) -> None:
        """Weights as FP32 with a pair of their own, as TensorRT wants them."""
        from onnx import helper

        graph = self._graph
        scale, zero = self._weight_scale(node, graph.floats(node.weight), bits=8)
        stored, back = graph.fresh(f"{node.weight}_quantised"), graph.fresh(f"{node.weight}_dequantised")
        self._before[node.name] += [
            helper.make_node(
                "QuantizeLinear",
                [node.weight, scale, zero],
                [stored],
                name=graph.fresh(f"{node.name}_weight_QuantizeLinear"),
                axis=node.out_axis,
            ),
            helper.make_node(
                "DequantizeLinear",
                [stored, scale, zero],
                [back],
                name=graph.fresh(f"{node.name}_weight_DequantizeLinear"),
                axis=node.out_axis,
            ),
        ]
        self._reroute(node.name, node.weight, back)

    def weights_stored(self, node: Weighted, *, bits: int, bias_scale: float | None) -> None:
        """Weights as INT8 with a DequantizeLinear, as ONNX Runtime wants them.

        Args:
            node: whose weights.
            bits: how many bits of each byte are used.
            bias_scale: scale of the data, if the bias becomes INT32; None leaves it FP32.
        """
        graph = self._graph
        weight = graph.floats(node.weight)
        scale, zero = self._weight_scale(node, weight, bits=bits)
        factors = graph.floats(scale)
        stored = graph.add_initializer(f"{node.weight}_int8", quantise(weight, factors, axis=node.out_axis))
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

    def _weight_scale(self, node: Weighted, weight: np.ndarray, *, bits: int) -> tuple[str, str]:
        scale = scales(weight, axis=node.out_axis, bits=bits)
        return (
            self._graph.add_initializer(f"{node.weight}_scale", scale),
            self._graph.add_initializer(f"{node.weight}_zero_point", np.zeros(scale.shape, np.int8)),
        )

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
