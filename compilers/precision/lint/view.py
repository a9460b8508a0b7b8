"""Graph view for lint rules: read-only, typed, with its Q/DQ pairs resolved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from plansmith.compilers.precision.graph import Graph, attribute, subgraphs
from plansmith.records.model import Component, EngineKind

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from numpy.typing import NDArray

    from plansmith.records.arrays import Arrays


OLDEST_OPSET = 9

Version = tuple[int, int]
NEWEST: Version = (11, 5)
# The version whose API TensorRT-RTX 1.7.1 has; its parser takes some things that the sources of 10.15 refuse.
RTX_API: Version = (11, 4)
COMMON: Version = (10, 15)

# ONNX 1.18 (opset 23) from 10.11 on, the table of 10.15 and 11.2 ends at 24, 11.5 adds 25.
_OPSETS: tuple[tuple[Version, int], ...] = (((11, 5), 25), ((10, 15), 24), ((10, 0), 23))

# Operators of ONNX itself that versions before these lack.
_SINCE: dict[str, Version] = {
    "Attention": (10, 14),
    "RMSNormalization": (10, 15),
    "RotaryEmbedding": (10, 15),
    "TensorScatter": (10, 15),
    "Swish": (11, 0),
    "DFT": (11, 2),
}

_READ = """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization BlackmanWindow Cast
    CastLike Ceil Celu Clip Concat Constant ConstantOfShape Conv ConvTranspose Cos Cosh CumSum DeformConv DepthToSpace
    DequantizeLinear Div Dropout Einsum Elu Equal Erf Exp Expand EyeLike Flatten Floor GRU Gather GatherElements
    GatherND Gelu Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool Greater GreaterOrEqual GridSample
    GroupNormalization HammingWindow HannWindow HardSigmoid HardSwish Hardmax Identity If ImageScaler
    InstanceNormalization IsInf IsNaN LRN LSTM LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax Loop
    LpNormalization LpPool MatMul Max MaxPool Mean MeanVarianceNormalization Min Mish Mod Mul Neg NonMaxSuppression
    NonZero Not OneHot Or PRelu Pad ParametricSoftplus Pow QuantizeLinear RNN RandomNormal RandomNormalLike
    RandomUniform RandomUniformLike Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax
    ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize ReverseSequence RoiAlign Round STFT
    ScaledTanh Scan Scatter ScatterElements ScatterND Selu Shape Shrink Sigmoid Sign Sin Sinh Size Slice Softmax
    Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Tan Tanh ThresholdedRelu Tile TopK Transpose Trilu
    Unsqueeze Upsample Where Xor
"""

# Operators that it builds with plugins of libnvinfer_plugin (onnxOpImporters.cpp; DFT: NVIDIA's release notes of 11.2).
_BY_PLUGIN = frozenset({"DFT", "DeformConv", "RoiAlign"})

# Operators of the parser's own, in any domain: those of NVIDIA's quantiser, and layers of TensorRT.
_OWN = """
    TRT_Attention TRT_BlockDequantize TRT_BlockQuantize TRT_DynamicQuantize TRT_FP4DynamicQuantize
    TRT_FP8DequantizeLinear TRT_FP8QuantizeLinear TRT_INT4DequantizeLinear TRT_INT4QuantizeLinear TRT_KVCacheUpdate
    TRT_MXFP8DequantizeLinear TRT_MXFP8DynamicQuantize TRT_MXFP8QuantizeLinear TRT_MoE TRT_QuantizedAttention
"""
_LIBRARY_SUFFIX = "_TRT"

# What `convertDtype` of its importerUtils.cpp knows; FP64 becomes FP32.
TYPES = frozenset(
    {
        "BFLOAT16",
        "BOOL",
        "DOUBLE",
        "FLOAT",
        "FLOAT16",
        "FLOAT4E2M1",
        "FLOAT8E4M3FN",
        "INT32",
        "INT4",
        "INT64",
        "INT8",
        "UINT8",
    }
)
MOST_DIMS = 8

WEIGHTED = ("Conv", "ConvTranspose", "MatMul", "Gemm")
_DEFAULT_AXIS = 1
# Shape inference reads the values of small constants (a Reshape's shape) and of no others.
_SMALL_BYTES = 1024


def version_of(text: str) -> Version:
    """Parse a version such as "10.16.1.11"; an empty text means the newest known."""
    numbers = text.split(".")
    return (int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0) if text else NEWEST


def before(version: Version | None) -> str:
    """Return a sentence ending on the first version that reads something, such as " before 11.2"; empty for None."""
    return f" before {version[0]}.{version[1]}" if version else ""


def newest_opset(version: Version) -> int:
    """Return the newest ONNX opset that a version's parser reads."""
    return next((opset for since, opset in _OPSETS if version >= since), _OPSETS[-1][1])


def since(operator: str) -> Version | None:
    """Return the first version that reads an ONNX operator; None if no known one does."""
    return (10, 0) if operator in _READ.split() else _SINCE.get(operator)


def is_by_plugin(operator: str, reduction: str) -> bool:
    """Whether the parser builds an ONNX operator with a TensorRT plugin.

    Some operators, and scatters with a reduction.
    """
    return operator in _BY_PLUGIN or (operator in {"Scatter", "ScatterElements"} and reduction != "none")


def is_own(operator: str) -> bool:
    """Whether the parser itself reads an operator of another domain."""
    return operator in _OWN.split()


def is_library_plugin(operator: str) -> bool:
    """Whether an operator has the name of a plugin in NVIDIA's own library."""
    return operator.endswith(_LIBRARY_SUFFIX)


QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"


@dataclass(frozen=True)
class Finding:
    """Lint finding: something in a lowered graph that an engine refuses, or that makes its results wrong.

    Attributes:
        id: of the rule; stays the same from version to version.
        severity: an "error" refuses the graph.
        node: where, by the node's name; empty for the graph as a whole.
        message: what is wrong.
        remedy: what to do.
    """

    id: str
    severity: Literal["error", "warning"]
    node: str
    message: str
    remedy: str


class View:
    """Graph view: the queries of lint rules on a graph.

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
        self.parser = version_of(tensorrt)
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
        """The version of the standard opset; 0 if the graph imports none."""
        return next((o.version for o in self.model.opset_import if o.domain in {"", "ai.onnx"}), 0)

    def every(self, *op_types: str) -> Iterator[onnx.NodeProto]:
        """Yield the nodes of some operators, in the graph's order."""
        return (node for node in self.nodes if node.op_type in op_types and node.domain in {"", "ai.onnx"})

    def inside(self, *op_types: str) -> Iterator[onnx.NodeProto]:
        """Yield the standard nodes of some operators (all if none is named), also in branches and loop bodies."""
        for graph in _graphs(self.graph.model.graph):
            for node in graph.node:
                if node.domain in {"", "ai.onnx"} and (not op_types or node.op_type in op_types):
                    yield node

    def constants(self) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """Yield name and value of every initializer and Constant node, one at a time."""
        import onnx

        for name, tensor in self._initializers.items():
            if tensor.data_type != onnx.TensorProto.STRING:
                yield name, onnx.numpy_helper.to_array(tensor, self._folder)
        for node in self.every("Constant"):
            value = self.constant(node.output[0])
            if value is not None:
                yield node.output[0], value

    def constant(self, tensor: str) -> NDArray[np.generic] | None:
        """Return a constant's value, also through Identity; None for computed tensors."""
        import onnx

        if tensor in self._initializers:
            return onnx.numpy_helper.to_array(self._initializers[tensor], self._folder)
        node = self.producer(tensor)
        if node is not None and node.op_type == "Identity":
            return self.constant(node.input[0])
        value = attribute(node, "value") if node is not None and node.op_type == "Constant" else None
        return None if value is None else onnx.numpy_helper.to_array(value)

    def is_constant(self, tensor: str) -> bool:
        """Whether a tensor is a constant, as `constant`, without reading the value."""
        if tensor in self._initializers:
            return True
        node = self.producer(tensor)
        if node is None:
            return False
        return node.op_type == "Constant" or (node.op_type == "Identity" and self.is_constant(node.input[0]))

    def producer(self, tensor: str) -> onnx.NodeProto | None:
        """Return the node that produces a tensor, also in a branch or loop; None for inputs and initializers."""
        return self.graph.producer(tensor) or self._inner.get(tensor)

    def is_fixed(self, tensor: str) -> bool:
        """Whether a builder can compute a tensor's value: it depends only on constants."""
        waiting, visited = [tensor], set[str]()
        while waiting:
            name = waiting.pop()
            node = self.producer(name)
            if name in visited or self.is_constant(name):
                continue
            if node is None or not node.input:
                return False
            visited.add(name)
            waiting += filter(None, node.input)
        return True

    def dtype(self, tensor: str) -> str:
        """Return ONNX's name of a tensor's type, such as "FLOAT16"; empty if unknown."""
        import onnx

        kind = self._types.get(tensor)
        if kind is None or not kind.tensor_type.elem_type:
            return ""
        return str(onnx.TensorProto.DataType.Name(kind.tensor_type.elem_type))

    def shape(self, tensor: str) -> list[int | None] | None:
        """Return a tensor's dims, None for a dynamic one; None if even the rank is unknown."""
        value = self._types.get(tensor)
        if value is None or not value.tensor_type.HasField("shape"):
            return None
        return [d.dim_value if d.HasField("dim_value") else None for d in value.tensor_type.shape.dim]

    def dequantizer(self, tensor: str) -> onnx.NodeProto | None:
        """Return the DequantizeLinear that produces a tensor."""
        node = self.graph.producer(tensor)
        return node if node is not None and node.op_type == DEQUANTIZE else None

    def is_weight(self, node: onnx.NodeProto) -> bool:
        """Whether a Q or DQ operates on a constant: pre-quantized, or with its own Q before it."""
        producer = self.graph.producer(node.input[0])
        if producer is not None and producer.op_type == QUANTIZE:
            return self.is_constant(producer.input[0])
        return self.is_constant(node.input[0])

    def is_per_channel(self, node: onnx.NodeProto) -> bool:
        """Whether a Q or DQ has a scale for each index of an axis."""
        scale = self.constant(operand(node, 1))
        return scale is not None and scale.size > 1

    def activations(self) -> Iterator[onnx.NodeProto]:
        """Yield every QuantizeLinear of a computed tensor or an input."""
        return (node for node in self.every(QUANTIZE) if not self.is_constant(node.input[0]))

    def run(self, tensors: Sequence[str]) -> Iterator[Arrays]:
        """Yield the values of some tensors, batch by batch, without those at padding."""
        from plansmith.compilers.precision import calibration

        positions = calibration.find_positions(self.model, self.feeds, tensors, self._mask_input)
        streamed = calibration.stream(self.model, self.feeds, tensors)
        for feed, values in zip(self.feeds, streamed, strict=True):
            mask = feed[self._mask_input].astype(bool) if self._mask_input in feed else None  # type: ignore[index]
            yield {name: calibration.without_padding(value, mask, positions[name]) for name, value in values.items()}

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
    """Return the name of an input; empty if it is omitted."""
    return node.input[place] if place < len(node.input) else ""


def axis_of(node: onnx.NodeProto, rank: int) -> int:
    """Return the axis of a per-channel Q or DQ, as a non-negative index."""
    axis = int(attribute(node, "axis", _DEFAULT_AXIS))
    return axis + rank if axis < 0 else axis


def _skeleton(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph with its large weights as inputs: small enough to copy and for type inference.

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
    """Yield a graph and its subgraphs (branches and loop bodies), recursively."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from _graphs(inner)
