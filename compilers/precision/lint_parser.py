"""Rules on operators: what TensorRT's ONNX parser does not read.

All of them from its table of operators, of TensorRT 10.15 and 11.2 (docs/operators.md of onnx-tensorrt).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plansmith.compilers.precision.lint_view import Finding, View, attribute, operand

if TYPE_CHECKING:
    import onnx

OLDEST_OPSET, NEWEST_OPSET = 9, 24
_STANDARD = ("", "ai.onnx")
_INTEGER = (
    "ConvInteger",
    "DynamicQuantizeLinear",
    "MatMulInteger",
    "QLinearConv",
    "QLinearMatMul",
)
_UNKNOWN = (
    "AffineGrid Bernoulli BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CenterCropPad Col2Im Compress "
    "ConcatFromSequence DFT Det ImageDecoder MaxRoiPool MaxUnpool MelWeightMatrix Multinomial "
    "NegativeLogLikelihoodLoss Optional OptionalGetElement OptionalHasElement RegexFullMatch SequenceAt "
    "SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength SequenceMap "
    "SoftmaxCrossEntropyLoss SplitToSequence StringNormalizer TfIdfVectorizer Unique"
)
_LARGEST_K = 3840


@dataclass(frozen=True)
class _Limit:
    """Of some operators: whether a node is beyond what is read, and how to say so."""

    op_types: Sequence[str]
    is_beyond: Callable[[View, onnx.NodeProto], bool]
    words: str


def _is_not(name: str, *allowed: object) -> Callable[[View, onnx.NodeProto], bool]:
    """An attribute that is given and none of some values."""

    def check(_: View, node: onnx.NodeProto) -> bool:
        value = attribute(node, name)
        return value is not None and (value.decode() if isinstance(value, bytes) else value) not in allowed

    return check


def _computes(place: int) -> Callable[[View, onnx.NodeProto], bool]:
    """An input that is given and not constant."""
    return lambda view, node: bool(operand(node, place)) and not view.is_constant(operand(node, place))


def _gives(place: int) -> Callable[[View, onnx.NodeProto], bool]:
    """An output that somebody asks for."""
    return lambda _, node: place < len(node.output) and bool(node.output[place])


def _is_dilated(_: View, node: onnx.NodeProto) -> bool:
    return any(d != 1 for d in attribute(node, "dilations", ()))


def _takes_many(view: View, node: onnx.NodeProto) -> bool:
    k = view.constant(operand(node, 1))
    return k is not None and int(k.ravel()[0]) > _LARGEST_K


def _has_cache(_: View, node: onnx.NodeProto) -> bool:
    return any(operand(node, place) for place in (4, 5, 6)) or len(node.output) > 1 or bool(attribute(node, "softcap"))


def _trains(view: View, node: onnx.NodeProto) -> bool:
    name = operand(node, 2)
    value = view.constant(name) if name else None
    return bool(name) and (value is None or bool(value.any()))


_COORDINATES = ("align_corners", "asymmetric", "half_pixel", "pytorch_half_pixel", "tf_half_pixel_for_nn")
_REDUCTIONS = tuple(f"Reduce{k}" for k in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum"))
_LIMITS = (
    _Limit(("AveragePool", "LpPool", "MaxPool"), _is_dilated, "pools with dilations"),
    _Limit(("MaxPool",), _gives(1), "gives the places of the maxima"),
    _Limit(("LayerNormalization",), _gives(1), "gives the mean or the deviation too"),
    _Limit(("TopK",), _takes_many, f"wants more than {_LARGEST_K} values"),
    _Limit(("ScatterND",), _is_not("reduction", "none"), "scatters with a reduction"),
    _Limit(("Resize",), _is_not("mode", "nearest", "linear"), "interpolates other than nearest and linear"),
    _Limit(("Resize",), _is_not("coordinate_transformation_mode", *_COORDINATES), "has a coordinate mode of its own"),
    _Limit(("Resize",), _is_not("antialias", 0), "smooths while it shrinks"),
    _Limit(("Resize",), _is_not("keep_aspect_ratio_policy", "stretch"), "keeps the aspect ratio"),
    _Limit((*_REDUCTIONS, "ReduceSumSquare"), _computes(1), "reduces over axes that are computed"),
    _Limit(("CumSum", "OneHot"), _computes(1), "takes an axis or depth that is computed"),
    _Limit(("LSTM",), _is_not("input_forget", 0), "couples the input and forget gates"),
    _Limit(("LSTM",), _is_not("layout", 0), "takes the batch first"),
    _Limit(("Attention",), _has_cache, "attends over cached keys, or caps its scores"),
    _Limit(("Dropout",), _trains, "drops out at inference"),
)


def operators(view: View) -> Iterator[Finding]:
    """Operators that the parser lacks, also inside of branches and loops; plug-ins aside."""
    if not view.tensorrt:
        return
    local = {(f.domain, f.name) for f in view.model.functions}
    for node in (*_all_nodes(view.nodes), *(n for f in view.model.functions for n in _all_nodes(f.node))):
        if node.domain not in _STANDARD:
            if (node.domain, node.op_type) not in local:
                words = f"is {node.op_type} of {node.domain}, which only some runtimes have"
                yield Finding("foreign-operator", "error", node.name, words, "lower without it for TensorRT")
        elif node.op_type in _INTEGER:
            words = f"is {node.op_type}, which TensorRT's parser does not read"
            yield Finding("integer-operator", "error", node.name, words, "use QuantizeLinear and DequantizeLinear")
        elif node.op_type in _UNKNOWN.split():
            words = f"is {node.op_type}, which TensorRT's parser does not read"
            yield Finding("unknown-operator", "error", node.name, words, "set engine: onnxruntime")


def limits(view: View) -> Iterator[Finding]:
    """Operators that the parser reads in part."""
    for limit in _LIMITS if view.tensorrt else ():
        for node in view.every(*limit.op_types):
            if limit.is_beyond(view, node):
                words = f"{limit.words}, which TensorRT's parser does not read"
                yield Finding("operator-limit", "error", node.name, words, "set engine: onnxruntime")


def strings(view: View) -> Iterator[Finding]:
    """TensorRT has no tensors of text."""
    if view.tensorrt:
        for value in view.model.graph.input:
            if view.dtype(value.name) == "STRING":
                words = f"input {value.name!r} is text"
                yield Finding("strings", "error", "", words, "tokenize before the model, or set engine: onnxruntime")


def opset(view: View) -> Iterator[Finding]:
    """The opsets that the engine reads."""
    oldest = OLDEST_OPSET if view.tensorrt else 1
    newest = min(view.max_opset or NEWEST_OPSET, NEWEST_OPSET) if view.tensorrt else view.max_opset
    if view.opset < oldest or (newest is not None and view.opset > newest):
        words = f"is of opset {view.opset}; {view.engine.value} reads {oldest} to {newest}"
        yield Finding("opset", "error", "", words, "export with an opset in between")


def _all_nodes(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for held in node.attribute:
            for graph in ([held.g] if held.HasField("g") else []) + list(held.graphs):
                yield from _all_nodes(graph.node)


RULES = (operators, limits, strings, opset)
