"""A lowered graph as the rules of the lint look at it: read only, typed, with its pairs of Q and DQ found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from plansmith.compilers.precision.calibration import find_positions, without_padding
from plansmith.compilers.precision.graph import Graph, subgraphs
from plansmith.compilers.precision.lint import parser_table
from plansmith.records.model import Component, EngineKind

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
WEIGHTED = ("Conv", "ConvTranspose", "MatMul", "Gemm")
_DEFAULT_AXIS = 1
# Shape inference reads the values of small constants (a Reshape's shape) and of no others.
_SMALL_BYTES = 1024


@dataclass(frozen=True)
class Finding:
    """Something in a lowered graph that an engine refuses, or that makes its numbers wrong.

    Attributes:
        id: of the rule; stays the same from version to version.
        severity: an "error" refuses the graph.
        node: where, by the node's name; empty for the graph as a whole.
        words: what is wrong.
        remedy: what to do.
    """

    id: str
    severity: Literal["error", "warning"]
    node: str
    words: str
    remedy: str


class View:
    """What the rules ask of a graph.

    Args:
        model: not changed; its weights in memory, or beside it in `folder`.
        engine: what will run it.
        feeds: inputs to run it on; none: rules that look at values find nothing.
        promised: the interface that the graph was to keep; None: nobody said.
        max_opset: the newest opset that the engine reads; None: nobody said.
        mask_input: the input that marks padding with 0; None where there is none.
        tensorrt: the version of TensorRT, such as "10.16"; empty: nobody said, and what the newest reads is right.
        plugins: libraries will bring operators that the engine itself lacks.
        folder: holds the weights that the model names and does not have.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        engine: EngineKind,
        *,
        feeds: Sequence[Arrays] = (),
        promised: Component | None = None,
        max_opset: int | None = None,
        mask_input: str | None = None,
        tensorrt: str = "",
        plugins: bool = False,
        folder: Path | None = None,
    ) -> None:
        self.model = model
        self.engine = engine
        self.feeds = feeds
        self.promised = promised
        self.max_opset = max_opset
        self.parser = parser_table.version_of(tensorrt)
        self.parser_is_known = bool(tensorrt)
        self.plugins = plugins
        self._mask_input = mask_input
        self._folder = str(folder or "")
        self._initializers = {t.name: t for graph in _graphs(model.graph) for t in graph.initializer}
        self.graph = Graph(_skeleton(model))
        self._inner = {name: node for node in self.inside() for name in node.output if name}
        self.nodes: Sequence[onnx.NodeProto] = self.graph.model.graph.node

    @property
    def tensorrt(self) -> bool:
        """Whether TensorRT's parser will read the graph."""
        return self.engine is EngineKind.TENSORRT

    @property
    def opset(self) -> int:
        """Of the standard operators; 0 where the graph names none."""
        return next((o.version for o in self.model.opset_import if o.domain in {"", "ai.onnx"}), 0)

    def every(self, *op_types: str) -> Iterator[onnx.NodeProto]:
        """The nodes of some operators, in the graph's order."""
        return (node for node in self.nodes if node.op_type in op_types and node.domain in {"", "ai.onnx"})

    def inside(self, *op_types: str) -> Iterator[onnx.NodeProto]:
        """The standard nodes of some operators (of all: none named), those of branches and loop bodies included."""
        for graph in _graphs(self.graph.model.graph):
            for node in graph.node:
                if node.domain in {"", "ai.onnx"} and (not op_types or node.op_type in op_types):
                    yield node

    def constants(self) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """Name and value of every initialiser and Constant node, one at a time."""
        import onnx

        for name, tensor in self._initializers.items():
            if tensor.data_type != onnx.TensorProto.STRING:
                yield name, onnx.numpy_helper.to_array(tensor, self._folder)
        for node in self.every("Constant"):
            value = self.constant(node.output[0])
            if value is not None:
                yield node.output[0], value

    def constant(self, tensor: str) -> NDArray[np.generic] | None:
        """A constant's value, also behind Identity; None for what is computed."""
        import onnx

        if tensor in self._initializers:
            return onnx.numpy_helper.to_array(self._initializers[tensor], self._folder)
        node = self.producer(tensor)
        if node is not None and node.op_type == "Identity":
            return self.constant(node.input[0])
        value = attribute(node, "value") if node is not None and node.op_type == "Constant" else None
        return None if value is None else onnx.numpy_helper.to_array(value)

    def is_constant(self, tensor: str) -> bool:
        """As `constant`, without reading the value."""
        if tensor in self._initializers:
            return True
        node = self.producer(tensor)
        if node is None:
            return False
        return node.op_type == "Constant" or (node.op_type == "Identity" and self.is_constant(node.input[0]))

    def producer(self, tensor: str) -> onnx.NodeProto | None:
        """The node that makes a tensor, also inside of a branch or a loop; None for inputs and initialisers."""
        return self.graph.producer(tensor) or self._inner.get(tensor)

    def is_fixed(self, tensor: str) -> bool:
        """Whether a builder can compute a tensor's value: nothing but constants go into it."""
        waiting, seen = [tensor], set[str]()
        while waiting:
            name = waiting.pop()
            node = self.producer(name)
            if name in seen or self.is_constant(name):
                continue
            if node is None or not node.input:
                return False
            seen.add(name)
            waiting += filter(None, node.input)
        return True

    def dtype(self, tensor: str) -> str:
        """ONNX's name of a tensor's type, such as "FLOAT16"; empty where it cannot be told."""
        import onnx

        kind = self._types.get(tensor)
        if kind is None or not kind.tensor_type.elem_type:
            return ""
        return str(onnx.TensorProto.DataType.Name(kind.tensor_type.elem_type))

    def shape(self, tensor: str) -> list[int | None] | None:
        """A tensor's dims, None for one that varies; None where even the rank cannot be told."""
        value = self._types.get(tensor)
        if value is None or not value.tensor_type.HasField("shape"):
            return None
        return [d.dim_value if d.HasField("dim_value") else None for d in value.tensor_type.shape.dim]

    def dequantizer(self, tensor: str) -> onnx.NodeProto | None:
        """The DequantizeLinear that makes a tensor."""
        node = self.graph.producer(tensor)
        return node if node is not None and node.op_type == DEQUANTIZE else None

    def is_weight(self, node: onnx.NodeProto) -> bool:
        """Whether a Q or DQ works on a constant: pre-quantised, or with a Q of its own before it."""
        producer = self.graph.producer(node.input[0])
        if producer is not None and producer.op_type == QUANTIZE:
            return self.is_constant(producer.input[0])
        return self.is_constant(node.input[0])

    def is_per_channel(self, node: onnx.NodeProto) -> bool:
        """Whether a Q or DQ has a scale for each index of an axis."""
        scale = self.constant(operand(node, 1))
        return scale is not None and scale.size > 1

    def activations(self) -> Iterator[onnx.NodeProto]:
        """Every QuantizeLinear of something that is computed or fed."""
        return (node for node in self.every(QUANTIZE) if not self.is_constant(node.input[0]))

    def run(self, tensors: Sequence[str]) -> Iterator[Arrays]:
        """The values of some tensors, a batch at a time, without those at padding: calibration leaves them out too."""
        from plansmith.compilers.precision import activations

        positions = find_positions(self.model, self.feeds, tensors, self._mask_input)
        streamed = activations.stream(self.model, self.feeds, tensors)
        for feed, values in zip(self.feeds, streamed, strict=True):
            mask = feed[self._mask_input].astype(bool) if self._mask_input in feed else None  # type: ignore[index]
            yield {name: without_padding(value, mask, positions[name]) for name, value in values.items()}

    @cached_property
    def _types(self) -> dict[str, onnx.TypeProto]:
        import onnx

        constants = {
            name: onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
            for name, tensor in self._initializers.items()
        }
        try:
            inferred = onnx.shape_inference.infer_shapes(self.graph.model, data_prop=True).graph
        except (onnx.shape_inference.InferenceError, RuntimeError):  # a rule says so
            inferred = self.graph.model.graph
        graphs = [*_graphs(inferred)][::-1]  # the main graph's word is the last one
        values = [value for graph in graphs for value in (*graph.value_info, *graph.input, *graph.output)]
        return constants | {value.name: value.type for value in values if value.HasField("type")}


def operand(node: onnx.NodeProto, place: int) -> str:
    """The name of an input; empty where it was left out."""
    return node.input[place] if place < len(node.input) else ""


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """An attribute's value."""
    import onnx

    found = next((a for a in node.attribute if a.name == name), None)
    return default if found is None else onnx.helper.get_attribute_value(found)


def axis_of(node: onnx.NodeProto, rank: int) -> int:
    """The axis of a per-channel Q or DQ, counted from the front."""
    axis = int(attribute(node, "axis", _DEFAULT_AXIS))
    return axis + rank if axis < 0 else axis


def _skeleton(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph without its large weights, which become inputs: small enough to copy and to infer types in.

    What the author says of inner tensors and outputs is left out: it is what is to be checked.
    """
    import onnx

    skeleton = onnx.ModelProto(ir_version=model.ir_version, functions=model.functions)
    skeleton.opset_import.extend(model.opset_import)
    unnamed = {node.domain for node in model.graph.node} - {o.domain for o in model.opset_import} - {"ai.onnx"}
    skeleton.opset_import.extend(onnx.helper.make_opsetid(domain, 1) for domain in sorted(unnamed) if domain)
    skeleton.graph.node.extend(model.graph.node)
    constant = {t.name for t in model.graph.initializer}
    skeleton.graph.input.extend(value for value in model.graph.input if value.name not in constant)
    skeleton.graph.output.extend(onnx.ValueInfoProto(name=value.name) for value in model.graph.output)
    for tensor in model.graph.initializer:
        if tensor.ByteSize() <= _SMALL_BYTES and tensor.data_location != tensor.EXTERNAL:
            skeleton.graph.initializer.append(tensor)
        else:
            skeleton.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return skeleton


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph, its branches and its loop bodies, and theirs."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from _graphs(inner)
