"""Attention masks: the huge negative numbers that softmax turns into zeros, made to fit into sixteen bits."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from plansmith.compilers.precision.fp16.ranges import Ranges
from plansmith.compilers.precision.graph import Graph

if TYPE_CHECKING:
    import onnx

FLOOR = -(2.0**14)
"""What a mask's numbers end at. Softmax makes exactly zero of it, beside scores of any size that is let through here;
a quarter of FP16's range, so that a score can be added to it without leaving the format: -65 504 and a score below
-16 are minus infinity, and a row of nothing else is NaN. A mask that the format can carry stays as it is."""

_LARGEST_SCORE = -FLOOR / 4
_SOFTMAX = {"Softmax", "LogSoftmax"}
_PASSING = {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity", "Flatten"}


class Masks:
    """Where masks meet scores.

    Attributes:
        ends: inputs of nodes, by node's name and place, that must end at the floor.
        reaching: the tensors between such a node and its softmax, which reach far below zero for no other reason.
    """

    def __init__(self) -> None:
        self.ends: dict[str, int] = {}
        self.reaching: set[str] = set()


def find(graph: Graph, floats: Collection[str], ranges: Ranges, limit: float) -> Masks:
    """Look behind every softmax for the node that lays a mask over scores.

    Args:
        graph: in FP32.
        floats: its tensors in FP32.
        ranges: what calibration saw.
        limit: the magnitude that a tensor must not exceed otherwise.
    """
    masks = Masks()
    for softmax in graph.model.graph.node:
        if softmax.op_type in _SOFTMAX and softmax.input[0] in floats:
            _look_behind(softmax, graph, ranges, limit, masks)
    return masks


def _look_behind(softmax: onnx.NodeProto, graph: Graph, ranges: Ranges, limit: float, masks: Masks) -> None:
    path, tensor = [], softmax.input[0]
    while True:
        node = graph.producer(tensor)
        if node is None or len(graph.consumers(tensor)) > 1 or tensor in graph.outputs:
            return
        path.append(tensor)
        if node.op_type not in _PASSING:
            break
        tensor = node.input[0]
    if node.op_type not in {"Add", "Where"}:
        return
    first = 1 if node.op_type == "Where" else 0
    bounds = [_bounds(name, graph, ranges) for name in node.input[first : first + 2]]
    masking = [place for place, (low, _) in enumerate(bounds) if low < -limit]
    if len(masking) != 1:
        return
    (mask,), (low, high) = masking, bounds[1 - masking[0]]
    if bounds[mask][1] <= _LARGEST_SCORE and max(abs(low), abs(high)) <= _LARGEST_SCORE:
        masks.ends[node.name] = first + mask
        masks.reaching |= set(path)


def _bounds(name: str, graph: Graph, ranges: Ranges) -> tuple[float, float]:
    stored = graph.constant(name)
    if stored is not None:
        return float(stored.min(initial=0)), float(stored.max(initial=0))
    return ranges.low.get(name, 0.0), ranges.high.get(name, 0.0)
