"""Rules on where Q/DQ stand: what is lowered that has to stay high, and pairs that are torn apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from plansmith.compilers.precision.lint.view import DEQUANTIZE, QUANTIZE, WEIGHTED, Finding, View, operand

if TYPE_CHECKING:
    import onnx

_NORMS = (
    "BatchNormalization",
    "GroupNormalization",
    "InstanceNormalization",
    "LayerNormalization",
    "LpNormalization",
    "RMSNormalization",
)
_SOFTMAX = ("LogSoftmax", "Softmax")
# Between a product of attention and the softmax: scaling, masking and shapes.
_SCORES = ("Add", "Cast", "Clip", "Div", "Identity", "Mul", "Reshape", "Squeeze", "Transpose", "Unsqueeze", "Where")
# What makes a mask of integers, without any weight or data in it.
_MASKING = (*_SCORES, "Concat", "ConstantOfShape", "Expand", "Gather", "Max", "Min", "Not", "Slice", "Sub", "Tile")
_INDICES = ("BOOL", "INT32", "INT64")
_KEEP = "leave it in floating point"


def softmax(view: View) -> Iterator[Finding]:
    """Probabilities in [0, 1] use half of the codes, most of them below the first; scores lose their order."""
    for node in view.every(*_SOFTMAX):
        if _quantizer_after(view, node.output[0]):
            yield Finding("quantised-softmax", "error", node.name, "has its probabilities quantised", _KEEP)
        if _dequantizer_before(view, node.input[0], set()):
            yield Finding("quantised-softmax", "error", node.name, "has its scores quantised", _KEEP)


def attention_products(view: View) -> Iterator[Finding]:
    """Products of two computed tensors are attention's; TensorRT fuses these, softmax and all, only when left alone."""
    severity: Literal["error", "warning"] = "error" if view.tensorrt else "warning"
    for node in view.every("MatMul"):
        sides = [view.dequantizer(name) for name in node.input]
        if all(side is not None and not view.is_weight(side) for side in sides):
            words = "multiplies two activations, both quantised"
            yield Finding("quantised-attention", severity, node.name, words, _KEEP)


def normalisation(view: View) -> Iterator[Finding]:
    """Mean and variance of codes are those of another distribution; TensorRT normalises in floating point anyway."""
    severity: Literal["error", "warning"] = "error" if view.tensorrt else "warning"
    for node in view.every(*_NORMS):
        if any(view.dequantizer(name) for name in node.input):
            words = "normalises what was quantised"
            yield Finding("quantised-normalisation", severity, node.name, words, _KEEP)


def graph_outputs(view: View) -> Iterator[Finding]:
    """Rounded answers help nobody: TensorRT's guide leaves the outputs of the last layers unquantised."""
    for value in view.model.graph.output:
        maker = _through(view, value.name)
        if maker is not None and maker.op_type in {QUANTIZE, DEQUANTIZE} and not view.is_weight(maker):
            words = f"quantises the graph's output {value.name!r}"
            yield Finding("quantised-output", "error", maker.name, words, _KEEP)


def indices(view: View) -> Iterator[Finding]:
    """Ids have no magnitude, and a mask's -3e38 becomes the scale of all that is added to it."""
    for node in view.every(QUANTIZE, "DynamicQuantizeLinear"):
        if not view.is_constant(node.input[0]) and _is_index(view, node.input[0], set()):
            words = "quantises ids or a mask"
            yield Finding("quantised-indices", "error", node.name, words, "leave integers and masks as they are")


def biases(view: View) -> Iterator[Finding]:
    """A bias is added to the sum at the scale of the products: INT32 in ONNX Runtime, floating point in TensorRT."""
    for node in view.every("Conv", "ConvTranspose", "Gemm"):
        maker = view.dequantizer(operand(node, 2))
        if maker is not None and view.dtype(maker.input[0]) in {"INT8", "UINT8"}:
            yield Finding("eight-bit-bias", "error", node.name, "has its bias in eight bits", "leave it higher")


def torn_pairs(view: View) -> Iterator[Finding]:
    """TensorRT knows eight-bit tensors between a Q, or a constant, and a DQ only (its table of operators)."""
    if not view.tensorrt:
        return
    outputs = {value.name for value in view.model.graph.output}
    for node in view.every(QUANTIZE):
        takers = view.graph.consumers(node.output[0])
        if (not takers and node.output[0] not in outputs) or any(n.op_type != DEQUANTIZE for n in takers):
            words = f"is read by {', '.join(n.op_type for n in takers) or 'nothing'} and not by a DequantizeLinear"
            yield Finding("torn-pair", "error", node.name, words, "put a DequantizeLinear right behind it")
    for node in view.every(DEQUANTIZE):
        before = view.graph.producer(node.input[0])
        if not view.is_constant(node.input[0]) and (before is None or before.op_type != QUANTIZE):
            words = f"reads what {before.op_type if before else 'a client'} gives, not a QuantizeLinear"
            yield Finding("torn-pair", "error", node.name, words, "put a QuantizeLinear right before it")


def loose_integers(view: View) -> Iterator[Finding]:
    """NVIDIA's guide: between pre-quantised weights and what uses them there is a DequantizeLinear."""
    if not view.tensorrt:
        return
    for tensor in view.model.graph.initializer:
        for node in view.graph.consumers(tensor.name) if view.dtype(tensor.name) in {"INT8", "UINT8"} else ():
            if node.op_type not in {QUANTIZE, DEQUANTIZE}:
                words = f"takes the eight-bit constant {tensor.name!r} as it is"
                yield Finding("loose-integers", "error", node.name, words, "dequantise it first")


def half_quantised(view: View) -> Iterator[Finding]:
    """NVIDIA's guide: quantise all inputs of an operator with weights, or none: else it runs in floating point."""
    for node in view.every(*WEIGHTED) if view.tensorrt else ():
        lowered = [view.dequantizer(name) is not None for name in node.input[:2]]
        if any(lowered) and not all(lowered):
            words = f"has its {'activation' if lowered[0] else 'weight'} quantised, and not the other input"
            yield Finding("half-quantised", "warning", node.name, words, "quantise both or neither")


def torn_fusions(view: View) -> Iterator[Finding]:
    """NVIDIA's guide: no Q between an operator with weights and its bias, which it would otherwise add by itself."""
    for node in view.every(*WEIGHTED) if view.tensorrt else ():
        for quantizer in _quantizer_after(view, node.output[0]):
            adders = [
                adder
                for dq in view.graph.consumers(quantizer.output[0])
                for adder in view.graph.consumers(dq.output[0])
                if adder.op_type == "Add" and any(view.is_constant(name) for name in adder.input)
            ]
            if adders:
                words = f"stands between {node.name} and its bias {adders[0].name}"
                yield Finding("torn-fusion", "warning", quantizer.name, words, "quantise behind the bias")


def _quantizer_after(view: View, tensor: str) -> list[onnx.NodeProto]:
    return [node for node in view.graph.consumers(tensor) if node.op_type == QUANTIZE]


def _dequantizer_before(view: View, tensor: str, seen: set[str]) -> bool:
    """Whether quantised activations reach a tensor through scaling and masking alone."""
    node = view.graph.producer(tensor)
    if node is None or tensor in seen:
        return False
    seen.add(tensor)
    if node.op_type == DEQUANTIZE:
        return not view.is_weight(node)
    return node.op_type in _SCORES and any(_dequantizer_before(view, name, seen) for name in node.input)


def _through(view: View, tensor: str) -> onnx.NodeProto | None:
    """What makes a tensor, behind the nodes that give it another shape or type."""
    node = view.graph.producer(tensor)
    while node is not None and node.op_type in {"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose"}:
        node = view.graph.producer(node.input[0])
    return node


def _is_index(view: View, tensor: str, seen: set[str]) -> bool:
    """Whether nothing but integers and constants went into a tensor; small unsigned ones are pixels."""
    kind = view.dtype(tensor)
    if kind in _INDICES:
        return True
    node = view.graph.producer(tensor)
    if node is None or node.op_type not in _MASKING or tensor in seen:
        return False
    seen.add(tensor)
    if node.op_type == "Gather" and view.is_constant(node.input[0]):
        return False  # an embedding: what is looked up is data
    computed = [name for name in node.input if name and not view.is_constant(name)]
    return bool(computed) and all(_is_index(view, name, seen) for name in computed)


RULES = (
    softmax,
    attention_products,
    normalisation,
    graph_outputs,
    indices,
    biases,
    torn_pairs,
    loose_integers,
    half_quantised,
    torn_fusions,
)
