"""How large and how small the numbers of a graph become, measured on calibration inputs.

The measuring is part of the graph that runs, so that of every tensor only a few numbers leave it: calibration at the
largest shapes needs hardly more memory than a request.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.compilers import onnx_files
from plansmith.compilers.onnxrt import open_session
from plansmith.compilers.precision.graph import Graph
from plansmith.errors import ExportError, first_line

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]
    Feeds = Callable[[], Iterable[Arrays]]

_SMALL_MATTERS = {"Div": 1, "Log": 0, "Reciprocal": 0, "Sqrt": 0, "Pow": 0}
"""Operators that make much of a small number, and the input that it enters by."""

_MEANS = frozenset({"ReduceSum", "ReduceMean"})
_POOLED = "GlobalAveragePool"
_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose"})


@dataclass
class Ranges:
    """What calibration saw.

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
        """The largest magnitude of a tensor; 0 for one that was never seen with an element."""
        return max(abs(self.low.get(tensor, 0.0)), abs(self.high.get(tensor, 0.0)))


def tensor_types(model: onnx.ModelProto) -> dict[str, str]:
    """ONNX Runtime's words for the type of every tensor of the main graph ("tensor(float)"), initialisers included.

    Raises:
        ExportError: ONNX Runtime refuses the graph.
    """
    import onnx

    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    known = {value.name for value in (*probe.graph.output, *probe.graph.input)}
    inner = dict.fromkeys(o for node in probe.graph.node for o in node.output if o and o not in known)
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner)
    with tempfile.TemporaryDirectory(prefix="plansmith-types-") as folder:
        try:
            session = open_session(onnx_files.save(probe, Path(folder)), rewrites="none")
        except Exception as error:
            raise ExportError(
                f"ONNX Runtime refuses the graph that is to be lowered: {first_line(error)}", remedy="read the log"
            ) from error
        types = {value.name: value.type for value in (*session.get_inputs(), *session.get_outputs())}
    float_type = onnx.TensorProto.FLOAT
    stored = {t.name: "tensor(float)" if t.data_type == float_type else "tensor" for t in probe.graph.initializer}
    return stored | types


def measure(graph: Graph, floats: Collection[str], feeds: Feeds, limit: float) -> Ranges:
    """Run a graph on calibration inputs and note what its numbers reach.

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
    seen = False
    for found in probe.run(feeds()):
        seen = True
        _note(ranges, found)
        shapes = {name: tuple(v.tolist()) for (kind, name), v in found.items() if kind == "shape"}
        for node in summing:
            ranges.terms[node.name] = max(ranges.terms.get(node.name, 0), _terms(node, shapes))
    if not seen:
        raise ExportError(
            "there are no calibration inputs, so that no range can be measured", remedy="name `data` in the spec"
        )
    doubtful = [n for n in summing if _bound(n, ranges, graph) > limit]
    ranges.sums |= {n.name: _bound(n, ranges, graph) for n in doubtful if n.op_type == _POOLED}
    doubtful = [n for n in doubtful if n.op_type != _POOLED]
    if doubtful:
        _measure_sums(graph, doubtful, feeds, ranges)
    return ranges


def _note(ranges: Ranges, found: Mapping[tuple[str, str], NDArray[np.generic]]) -> None:
    for (kind, name), array in found.items():
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
    """How many numbers one element of a node's output is the sum of."""
    first, made = shapes[node.input[0]], shapes[node.output[0]]
    if len(node.input) == 1 or node.op_type in _MEANS:
        return math.prod(first) // max(1, math.prod(made))
    second = shapes[node.input[1]]
    if node.op_type == "Conv":
        return math.prod(second[1:])
    if node.op_type == "ConvTranspose":
        return math.prod(second[2:]) * second[0]
    transposed = node.op_type == "Gemm" and any(a.name == "transA" and a.i for a in node.attribute)
    return first[0] if transposed else first[-1]


def _bound(node: onnx.NodeProto, ranges: Ranges, graph: Graph) -> float:
    """What a sum inside a node cannot exceed, judged by its largest inputs alone."""
    factors = node.input[:2] if node.op_type in _PRODUCTS else node.input[:1]
    return ranges.terms[node.name] * math.prod(_reach(name, ranges, graph) for name in factors)


def _reach(name: str, ranges: Ranges, graph: Graph) -> float:
    import numpy as np

    stored = graph.constant(name)
    return ranges.reach(name) if stored is None else float(np.abs(stored.astype(np.float64)).max(initial=0))


def _measure_sums(graph: Graph, nodes: Sequence[onnx.NodeProto], feeds: Feeds, ranges: Ranges) -> None:
    """Have nodes add the magnitudes of what they add: no partial sum, in whatever order, is larger."""
    probe = _Probe(graph.model)
    for node in nodes:
        probe.magnitudes(node)
    for found in probe.run(feeds()):
        _note(ranges, found)


class _Probe:
    """A copy of a graph that measures itself: what is added to it answers with a few numbers a batch."""

    def __init__(self, model: onnx.ModelProto) -> None:
        import onnx

        self._model = onnx.ModelProto()
        self._model.CopyFrom(model)
        self._asked: dict[tuple[str, str], str] = {}
        self._first = len(model.graph.node)
        self._count = 0

    def add(self, key: tuple[str, str], operator: str, inputs: list[str]) -> None:
        """Ask for a number: `key` says which."""
        keepdims: dict[str, Any] = {"keepdims": 0} if operator.startswith("Reduce") else {}
        self._asked[key] = self._node(operator, inputs, **keepdims)

    def shape(self, name: str) -> None:
        """Ask for the shape of a tensor."""
        self.add(("shape", name), "Shape", [name])

    def smallest(self, name: str) -> None:
        """Ask for the smallest magnitude but zero."""
        import numpy as np

        zero, large = (self._constant(np.array(v, np.float32)) for v in (0.0, np.inf))
        size = self._node("Abs", [name])
        self.add(
            ("smallest", name), "ReduceMin", [self._node("Where", [self._node("Equal", [name, zero]), large, size])]
        )

    def magnitudes(self, node: onnx.NodeProto) -> None:
        """Ask for the largest sum of magnitudes that a node forms."""
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
        """The numbers asked for, batch by batch."""
        self._interleave()
        import onnx

        names = list(self._asked.values())
        del self._model.graph.output[:]
        self._model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        with tempfile.TemporaryDirectory(prefix="plansmith-ranges-") as folder:
            session = open_session(onnx_files.save(self._model, Path(folder)), rewrites="none", in_order=True)
            for feed in feeds:
                yield dict(zip(self._asked, session.run(names, dict(feed)), strict=True))

    def _interleave(self) -> None:
        """Put every question behind what it asks about: run in this order, a tensor is forgotten soon."""
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
