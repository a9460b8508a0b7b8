"""Value ranges: largest and smallest values of a graph on calibration inputs, including attention masks."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plansmith.compilers.onnxrt import open_model
from plansmith.compilers.precision.graph import Graph
from plansmith.errors import ExportError, first_line

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from numpy.typing import NDArray

    from plansmith.records.arrays import Arrays

    Feeds = Callable[[], Iterable[Arrays]]


_SMALL_MATTERS = {"Div": 1, "Log": 0, "Reciprocal": 0, "Sqrt": 0, "Pow": 0}
"""Operators that make much of a small number, and the input that it enters by."""

_MEANS = frozenset({"ReduceSum", "ReduceMean"})
_POOLED = "GlobalAveragePool"
_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose"})

FLOOR = -(2.0**14)
"""What a mask's numbers end at. Softmax makes exactly zero of it, beside scores of any size that is let through here;
a quarter of FP16's range, so that a score can be added to it without leaving the format: -65 504 and a score below
-16 are minus infinity, and a row of nothing else is NaN. A mask that the format can carry stays as it is."""

_LARGEST_SCORE = -FLOOR / 4
_SOFTMAX = {"Softmax", "LogSoftmax"}
_PASSING = {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity", "Flatten"}


@dataclass
class Ranges:
    """Ranges observed in calibration.

    Attributes:
        low: the smallest number of each tensor in FP32; `high`: the largest.
        smallest: the smallest magnitude but zero, where a small one matters.
        terms: how many numbers each output of a reduction or product is the sum of, at the most, by node.
        sums: the largest sum of magnitudes that a node forms, so that no order of adding exceeds it, by node; only
            where it may matter.
    """

    low: dict[str, float] = field(default_factory=dict)
    high: dict[str, float] = field(default_factory=dict)
    smallest: dict[str, float] = field(default_factory=dict)
    terms: dict[str, int] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)

    def reach(self, tensor: str) -> float:
        """Return the largest magnitude of a tensor; 0 for one that never had an element."""
        return max(abs(self.low.get(tensor, 0.0)), abs(self.high.get(tensor, 0.0)))


def tensor_types(model: onnx.ModelProto) -> dict[str, str]:
    """Return ONNX Runtime's type of every tensor of the main graph ("tensor(float)"), including initializers.

    Raises:
        ExportError: ONNX Runtime refuses the graph.
    """
    import onnx

    names = {value.name for value in model.graph.input}
    inner = dict.fromkeys(o for node in model.graph.node for o in node.output if o and o not in names)
    try:
        session = open_model(model, outputs=inner, rewrites="none")
    except Exception as error:
        raise ExportError(
            f"ONNX Runtime refuses the graph that is to be lowered: {first_line(error)}", remedy="read the log"
        ) from error
    types = {value.name: value.type for value in (*session.get_inputs(), *session.get_outputs())}
    float_type = onnx.TensorProto.FLOAT
    stored = {t.name: "tensor(float)" if t.data_type == float_type else "tensor" for t in model.graph.initializer}
    return stored | types


def measure(graph: Graph, floats: Collection[str], feeds: Feeds, limit: float) -> Ranges:
    """Run a graph on calibration inputs and record the ranges of its values.

    Args:
        graph: in FP32.
        floats: its tensors in FP32.
        feeds: gives inputs, a batch each; asked once, or twice where sums may exceed the limit.
        limit: what no sum of magnitudes may exceed.

    Raises:
        ExportError: there is no calibration input.
    """
    ranges = Ranges()
    tensors = [n for n in floats if graph.constant(n) is None]
    probe = _Probe(graph.model)
    small = {n.input[_SMALL_MATTERS[n.op_type]] for n in graph.model.graph.node if n.op_type in _SMALL_MATTERS}
    summing = [
        n for n in graph.model.graph.node if n.op_type in {*_MEANS, *_PRODUCTS, _POOLED} and n.input[0] in floats
    ]
    for name in tensors:
        probe.add(("high", name), "ReduceMax", [name])
        probe.add(("low", name), "ReduceMin", [name])
    for name in small.intersection(tensors):
        probe.smallest(name)
    for name in dict.fromkeys(t for n in summing for t in (*n.input[:2], n.output[0]) if t):
        probe.shape(name)
    has_run = False
    for arrays in probe.run(feeds()):
        has_run = True
        _note(ranges, arrays)
        shapes = {name: tuple(v.tolist()) for (kind, name), v in arrays.items() if kind == "shape"}
        for node in summing:
            ranges.terms[node.name] = max(ranges.terms.get(node.name, 0), _terms(node, shapes))
    if not has_run:
        raise ExportError(
            "there are no calibration inputs, so that no range can be measured", remedy="name `data` in the spec"
        )
    doubtful = [n for n in summing if _bound(n, ranges, graph) > limit]
    ranges.sums |= {n.name: _bound(n, ranges, graph) for n in doubtful if n.op_type == _POOLED}
    doubtful = [n for n in doubtful if n.op_type != _POOLED]
    if doubtful:
        _measure_sums(graph, doubtful, feeds, ranges)
    return ranges


def _note(ranges: Ranges, arrays: Mapping[tuple[str, str], NDArray[np.generic]]) -> None:
    for (kind, name), array in arrays.items():
        if kind == "shape":
            continue
        values, value = getattr(ranges, kind), float(array)
        if math.isnan(value):
            continue  # what is no number in FP32 is none in any format
        if kind in {"low", "smallest"}:
            values[name] = min(values.get(name, math.inf), value)
        else:
            values[name] = max(values.get(name, -math.inf), value)
    for name in [n for n in ranges.low if ranges.low[n] > ranges.high[n]]:
        del ranges.low[name], ranges.high[name]  # so far it had no elements


def _terms(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """The number of terms summed in one element of a node's output."""
    first, output_shape = shapes[node.input[0]], shapes[node.output[0]]
    if len(node.input) == 1 or node.op_type in _MEANS:
        return math.prod(first) // max(1, math.prod(output_shape))
    second = shapes[node.input[1]]
    if node.op_type == "Conv":
        return math.prod(second[1:])
    if node.op_type == "ConvTranspose":
        return math.prod(second[2:]) * second[0]
    transposed = node.op_type == "Gemm" and any(a.name == "transA" and a.i for a in node.attribute)
    return first[0] if transposed else first[-1]


def _bound(node: onnx.NodeProto, ranges: Ranges, graph: Graph) -> float:
    """An upper bound for a sum inside a node, from its largest inputs alone."""
    factors = node.input[:2] if node.op_type in _PRODUCTS else node.input[:1]
    return ranges.terms[node.name] * math.prod(_reach(name, ranges, graph) for name in factors)


def _reach(name: str, ranges: Ranges, graph: Graph) -> float:
    import numpy as np

    stored = graph.constant(name)
    return ranges.reach(name) if stored is None else float(np.abs(stored.astype(np.float64)).max(initial=0))


def _measure_sums(graph: Graph, nodes: Sequence[onnx.NodeProto], feeds: Feeds, ranges: Ranges) -> None:
    """Measure the sums of magnitudes in nodes: no partial sum, in whatever order, is larger."""
    probe = _Probe(graph.model)
    for node in nodes:
        probe.magnitudes(node)
    for arrays in probe.run(feeds()):
        _note(ranges, arrays)


class _Probe:
    """An instrumented copy of a graph: the added outputs are a few numbers per batch."""

    def __init__(self, model: onnx.ModelProto) -> None:
        import onnx

        self._model = onnx.ModelProto()
        self._model.CopyFrom(model)
        self._output_names: dict[tuple[str, str], str] = {}
        self._first = len(model.graph.node)
        self._count = 0

    def add(self, key: tuple[str, str], operator: str, inputs: list[str]) -> None:
        """Add an output; `key` identifies it."""
        keepdims: dict[str, Any] = {"keepdims": 0} if operator.startswith("Reduce") else {}
        self._output_names[key] = self._node(operator, inputs, **keepdims)

    def shape(self, name: str) -> None:
        """Add the shape of a tensor."""
        self.add(("shape", name), "Shape", [name])

    def smallest(self, name: str) -> None:
        """Add the smallest nonzero magnitude of a tensor."""
        import numpy as np

        zero, large = (self._constant(np.array(v, np.float32)) for v in (0.0, np.inf))
        size = self._node("Abs", [name])
        self.add(
            ("smallest", name), "ReduceMin", [self._node("Where", [self._node("Equal", [name, zero]), large, size])]
        )

    def magnitudes(self, node: onnx.NodeProto) -> None:
        """Add the largest sum of magnitudes that a node forms."""
        import onnx

        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.op_type = "ReduceSum" if node.op_type in _MEANS else node.op_type
        if node.op_type == "ReduceMean":
            copy.op_type = "ReduceL1"  # its axes are given in the same way, in every opset
        factors = 1 if node.op_type in _MEANS else 2
        copy.input[:] = [self._node("Abs", [t]) if i < factors else t for i, t in enumerate(node.input)]
        if node.op_type not in _MEANS:
            del copy.input[2:]  # biases come last, after the sum
        self._count += 1
        copy.name = copy.output[0] = f"plansmith:{self._count}"
        self._model.graph.node.append(copy)
        self.add(("sums", node.name), "ReduceMax", [copy.output[0]])

    def run(self, feeds: Iterable[Arrays]) -> Iterator[dict[tuple[str, str], NDArray[np.generic]]]:
        """Run the graph and yield the measured numbers, batch by batch."""
        self._interleave()
        import onnx

        names = list(self._output_names.values())
        del self._model.graph.output[:]
        self._model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        session = open_model(self._model, rewrites="none", in_order=True)
        for feed in feeds:
            yield dict(zip(self._output_names, session.run(names, dict(feed)), strict=True))

    def _interleave(self) -> None:
        """Place every probe right after the tensor it measures, so that tensors are freed early."""
        nodes = list(self._model.graph.node)
        places = {output: place for place, node in enumerate(nodes) for output in node.output}
        order: dict[str, int] = {}
        for place, node in enumerate(nodes):
            late = max((order.get(t, places.get(t, -1)) for t in node.input), default=-1)
            own = place if place < self._first else late
            order.update(dict.fromkeys(node.output, own))
        copies = [type(n)() for n in nodes]
        for copy, node in zip(copies, sorted(nodes, key=lambda n: order[next(filter(None, n.output))]), strict=True):
            copy.CopyFrom(node)
        del self._model.graph.node[:]
        self._model.graph.node.extend(copies)

    def _node(self, operator: str, inputs: list[str], **attributes: Any) -> str:
        import onnx

        self._count += 1
        name = f"plansmith:{self._count}"
        self._model.graph.node.append(onnx.helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def _constant(self, value: NDArray[np.float32]) -> str:
        import onnx

        self._count += 1
        name = f"plansmith:{self._count}"
        self._model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
        return name


class Masks:
    """Attention masks: where masks are applied to scores.

    Attributes:
        ends: inputs of nodes, by node's name and place, that must end at the floor.
        reaching: the tensors between such a node and its softmax, which reach far below zero for no other reason.
    """

    def __init__(self) -> None:
        self.ends: dict[str, int] = {}
        self.reaching: set[str] = set()


def find(graph: Graph, floats: Collection[str], ranges: Ranges, limit: float) -> Masks:
    """Find the node that applies a mask to the scores before every softmax.

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
