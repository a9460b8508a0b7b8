"""Q/DQ rules: placement of pairs, and their scales, zero points, axes and integer types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from plansmith.compilers.precision.graph import attribute
from plansmith.compilers.precision.lint.view import DEQUANTIZE, QUANTIZE, WEIGHTED, Finding, View, axis_of, operand

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

_SYMMETRIC = "quantise symmetrically: signed integers and zero point 0"
_EIGHT_BITS = ("INT8", "FLOAT8E4M3FN", "FLOAT8E5M2", "INT4", "FLOAT4E2M1")


def softmax(view: View) -> Iterator[Finding]:
    """Report quantized softmax: probabilities in [0, 1] use half of the codes, most below the first.

    Scores lose order.
    """
    for node in view.every(*_SOFTMAX):
        if _quantizer_after(view, node.output[0]):
            yield Finding("quantised-softmax", "error", node.name, "has its probabilities quantised", _KEEP)
        if _dequantizer_before(view, node.input[0], set()):
            yield Finding("quantised-softmax", "error", node.name, "has its scores quantised", _KEEP)


def attention_products(view: View) -> Iterator[Finding]:
    """Report quantized products of two computed tensors: TensorRT fuses attention only if it is not quantized."""
    severity: Literal["error", "warning"] = "error" if view.tensorrt else "warning"
    for node in view.every("MatMul"):
        sides = [view.dequantizer(name) for name in node.input]
        if all(side is not None and not view.is_weight(side) for side in sides):
            message = "multiplies two activations, both quantised"
            yield Finding("quantised-attention", severity, node.name, message, _KEEP)


def normalisation(view: View) -> Iterator[Finding]:
    """Report quantized normalization.

    Codes have another mean and variance, and TensorRT computes it in floats anyway.
    """
    severity: Literal["error", "warning"] = "error" if view.tensorrt else "warning"
    for node in view.every(*_NORMS):
        if any(view.dequantizer(name) for name in node.input):
            message = "normalises what was quantised"
            yield Finding("quantised-normalisation", severity, node.name, message, _KEEP)


def graph_outputs(view: View) -> Iterator[Finding]:
    """Report quantized graph outputs: TensorRT's guide leaves the outputs of the last layers unquantized."""
    for value in view.model.graph.output:
        maker = _through(view, value.name)
        if maker is not None and maker.op_type in {QUANTIZE, DEQUANTIZE} and not view.is_weight(maker):
            message = f"quantises the graph's output {value.name!r}"
            yield Finding("quantised-output", "error", maker.name, message, _KEEP)


def indices(view: View) -> Iterator[Finding]:
    """Report quantized indices and masks: IDs have no magnitude, and a mask's -3e38 would determine the scale."""
    for node in view.every(QUANTIZE, "DynamicQuantizeLinear"):
        if not view.is_constant(node.input[0]) and _is_index(view, node.input[0], set()):
            message = "quantises ids or a mask"
            yield Finding("quantised-indices", "error", node.name, message, "leave integers and masks as they are")


def biases(view: View) -> Iterator[Finding]:
    """Report 8-bit biases: a bias has the products' scale, INT32 in ONNX Runtime, floating point in TensorRT."""
    for node in view.every("Conv", "ConvTranspose", "Gemm"):
        maker = view.dequantizer(operand(node, 2))
        if maker is not None and view.dtype(maker.input[0]) in {"INT8", "UINT8"}:
            yield Finding("eight-bit-bias", "error", node.name, "has its bias in eight bits", "leave it higher")


def torn_pairs(view: View) -> Iterator[Finding]:
    """Report 8-bit tensors not between a Q, or a constant, and a DQ.

    TensorRT has no others (its table of operators).
    """
    if not view.tensorrt:
        return
    outputs = {value.name for value in view.model.graph.output}
    for node in view.every(QUANTIZE):
        takers = view.graph.consumers(node.output[0])
        if (not takers and node.output[0] not in outputs) or any(n.op_type != DEQUANTIZE for n in takers):
            message = f"is read by {', '.join(n.op_type for n in takers) or 'nothing'} and not by a DequantizeLinear"
            yield Finding("torn-pair", "error", node.name, message, "put a DequantizeLinear right behind it")
    for node in view.every(DEQUANTIZE):
        before = view.graph.producer(node.input[0])
        if not view.is_constant(node.input[0]) and (before is None or before.op_type != QUANTIZE):
            message = f"reads what {before.op_type if before else 'a client'} gives, not a QuantizeLinear"
            yield Finding("torn-pair", "error", node.name, message, "put a QuantizeLinear right before it")


def loose_integers(view: View) -> Iterator[Finding]:
    """Report pre-quantized weights used without a DequantizeLinear (NVIDIA's guide)."""
    if not view.tensorrt:
        return
    for tensor in view.model.graph.initializer:
        for node in view.graph.consumers(tensor.name) if view.dtype(tensor.name) in {"INT8", "UINT8"} else ():
            if node.op_type not in {QUANTIZE, DEQUANTIZE}:
                message = f"takes the eight-bit constant {tensor.name!r} as it is"
                yield Finding("loose-integers", "error", node.name, message, "dequantise it first")


def half_quantised(view: View) -> Iterator[Finding]:
    """Report weighted operators with only some inputs quantized, which run in floating point (NVIDIA's guide)."""
    for node in view.every(*WEIGHTED) if view.tensorrt else ():
        lowered = [view.dequantizer(name) is not None for name in node.input[:2]]
        if any(lowered) and not all(lowered):
            message = f"has its {'activation' if lowered[0] else 'weight'} quantised, and not the other input"
            yield Finding("half-quantised", "warning", node.name, message, "quantise both or neither")


def torn_fusions(view: View) -> Iterator[Finding]:
    """Report a Q between a weighted operator and its bias, which prevents their fusion (NVIDIA's guide)."""
    for node in view.every(*WEIGHTED) if view.tensorrt else ():
        for quantizer in _quantizer_after(view, node.output[0]):
            adders = [
                adder
                for dq in view.graph.consumers(quantizer.output[0])
                for adder in view.graph.consumers(dq.output[0])
                if adder.op_type == "Add" and any(view.is_constant(name) for name in adder.input)
            ]
            if adders:
                message = f"stands between {node.name} and its bias {adders[0].name}"
                yield Finding("torn-fusion", "warning", quantizer.name, message, "quantise behind the bias")


def _quantizer_after(view: View, tensor: str) -> list[onnx.NodeProto]:
    return [node for node in view.graph.consumers(tensor) if node.op_type == QUANTIZE]


def _dequantizer_before(view: View, tensor: str, visited: set[str]) -> bool:
    """Whether a tensor comes from quantized activations only through scaling and masking."""
    node = view.graph.producer(tensor)
    if node is None or tensor in visited:
        return False
    visited.add(tensor)
    if node.op_type == DEQUANTIZE:
        return not view.is_weight(node)
    return node.op_type in _SCORES and any(_dequantizer_before(view, name, visited) for name in node.input)


def _through(view: View, tensor: str) -> onnx.NodeProto | None:
    """The producer of a tensor, before nodes that only change its shape or type."""
    node = view.graph.producer(tensor)
    while node is not None and node.op_type in {"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose"}:
        node = view.graph.producer(node.input[0])
    return node


def _is_index(view: View, tensor: str, visited: set[str]) -> bool:
    """Whether a tensor is computed only from integers and constants; small unsigned ones are pixels."""
    kind = view.dtype(tensor)
    if kind in _INDICES:
        return True
    node = view.graph.producer(tensor)
    if node is None or node.op_type not in _MASKING or tensor in visited:
        return False
    visited.add(tensor)
    if node.op_type == "Gather" and view.is_constant(node.input[0]):
        return False  # an embedding: what is looked up is data
    computed = [name for name in node.input if name and not view.is_constant(name)]
    return bool(computed) and all(_is_index(view, name, visited) for name in computed)


PLACEMENT_RULES = (
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


def missing_scale(view: View) -> Iterator[Finding]:
    """Report missing scales: ONNX requires one, which the builder must be able to compute (IQuantizeLayer)."""
    for node in view.every(QUANTIZE, DEQUANTIZE):
        scale = operand(node, 1)
        has_source = scale and (view.graph.producer(scale) or scale in view.graph.inputs or view.is_constant(scale))
        if not has_source:
            message = f"has no scale{f': nothing makes {scale!r}' if scale else ''}"
            yield Finding("missing-scale", "error", node.name, message, "calibrate the tensor and give its scale")
        elif view.tensorrt and not view.is_fixed(scale):
            message = f"takes a scale that depends on the inputs ({scale!r}), which TensorRT may refuse"
            yield Finding("computed-scale", "warning", node.name, message, "use static quantisation for TensorRT")


def bad_scale(view: View) -> Iterator[Finding]:
    """Report bad scales: TensorRT's parser wants positive ones, and subnormals may be flushed to zero."""
    import numpy as np

    for node in view.every(QUANTIZE, DEQUANTIZE):
        scale = view.constant(operand(node, 1))
        if scale is None or scale.dtype.kind != "f":
            continue
        values = scale.astype(np.float64)
        problems = {
            "not finite": ~np.isfinite(values),
            "zero": values == 0,
            "negative": values < 0,
            "subnormal": (values > 0) & (values < (2.0**-14 if scale.dtype == np.float16 else 2.0**-126)),
        }
        for kind, where in problems.items():
            if where.any():
                message = f"has a scale that is {kind} ({int(where.sum())} of {scale.size})"
                yield Finding("bad-scale", "error", node.name, message, "give a channel without values the scale 1")
                break


def zero_point(view: View) -> Iterator[Finding]:
    """Report nonzero zero points, which TensorRT's parser refuses on a GPU."""
    if not view.tensorrt:
        return
    for node in view.every(QUANTIZE, DEQUANTIZE):
        name = operand(node, 2)
        value = view.constant(name) if name else None
        if value is not None and value.astype("float32").any():
            message = f"has the zero point {value.ravel()[value.astype('float32').ravel().nonzero()][0]}"
            yield Finding("asymmetric-zero-point", "error", node.name, message, _SYMMETRIC)
        elif name and value is None:
            yield Finding("asymmetric-zero-point", "error", node.name, "has a computed zero point", _SYMMETRIC)


def unsigned(view: View) -> Iterator[Finding]:
    """Report UINT8 codes: TensorRT's parser reads them as INT8 with only a warning, so codes above 127 change value.

    ONNX means UINT8 where a QuantizeLinear has neither a zero point nor `output_dtype`.
    """
    if not view.tensorrt:
        return
    for node in view.every(QUANTIZE, DEQUANTIZE):
        kind = view.dtype(node.output[0] if node.op_type == QUANTIZE else node.input[0])
        if kind == "UINT8":
            implied = node.op_type == QUANTIZE and not operand(node, 2) and not attribute(node, "output_dtype")
            message = f"works on UINT8{', which ONNX means where no zero point is given' if implied else ''}"
            yield Finding("unsigned-quantisation", "error", node.name, message, _SYMMETRIC)


def integer_type(view: View) -> Iterator[Finding]:
    """Report integers above 8 bits in a DequantizeLayer: TensorRT refuses ONNX Runtime's INT32 biases."""
    if not view.tensorrt:
        return
    for node in view.every(DEQUANTIZE):
        kind = view.dtype(node.input[0])
        if kind == "INT32":
            message = "dequantises an INT32 bias"
            yield Finding("int32-bias", "error", node.name, message, "leave biases in floating point")
        elif kind not in {"", "UINT8", *_EIGHT_BITS}:
            message = f"dequantises {kind}"
            yield Finding("quantised-type", "error", node.name, message, "use INT8")


def scale_count(view: View) -> Iterator[Finding]:
    """Report a number of scales or zero points that differs from the channels along the axis (ONNX, both engines)."""
    for node in view.every(QUANTIZE, DEQUANTIZE):
        scale, shape = view.constant(operand(node, 1)), view.shape(node.input[0])
        if scale is None or attribute(node, "block_size", 0):
            continue
        zero = view.constant(operand(node, 2)) if operand(node, 2) else None
        if zero is not None and zero.size != scale.size:
            message = f"has {scale.size} scales and {zero.size} zero points"
            yield Finding("scale-count", "error", node.name, message, "give as many of the one as of the other")
        if scale.size == 1 or shape is None:
            continue
        axis = axis_of(node, len(shape))
        if not 0 <= axis < len(shape):
            message = f"names axis {axis} of a tensor with {len(shape)}"
            yield Finding("wrong-axis", "error", node.name, message, "name the axis of the output channels")
        elif shape[axis] not in {None, scale.size}:
            message = f"has {scale.size} scales for the {shape[axis]} channels of axis {axis}"
            yield Finding("scale-count", "error", node.name, message, "give one scale a channel, or one in all")


def wrong_axis(view: View) -> Iterator[Finding]:
    """Report weights not scaled per output channel: only that factor can be moved out of the sum over the inputs.

    Conv: axis 0, ConvTranspose: 1, MatMul: the last (the one before it for a constant on the left), Gemm: 1, or 0
    with transB (NVIDIA's guide to explicit quantisation; ONNX Runtime's MatMulIntegerToFloat).
    """
    for node in view.every(DEQUANTIZE):
        shape = view.shape(node.input[0])
        if shape is None or not view.is_weight(node) or not view.is_per_channel(node):
            continue
        for consumer, place, axis in _weighted(view, node.output[0], axis_of(node, len(shape))):
            right = _output_channels(consumer, place, len(shape))
            if right is not None and axis != right:
                message = f"has scales along axis {axis} of a weight of {consumer.op_type} {consumer.name}, not {right}"
                yield Finding("wrong-axis", "error", node.name, message, "quantise weights per output channel")


def _weighted(view: View, tensor: str, axis: int) -> Iterator[tuple[onnx.NodeProto, int, int]]:
    """Yield the operators that take a weight, its input position and the axis's new position; follows Transpose."""
    for consumer in view.graph.consumers(tensor):
        if consumer.op_type == "Transpose" and attribute(consumer, "perm"):
            yield from _weighted(view, consumer.output[0], list(attribute(consumer, "perm")).index(axis))
        else:
            yield from ((consumer, place, axis) for place, name in enumerate(consumer.input) if name == tensor)


def _output_channels(consumer: onnx.NodeProto, place: int, rank: int) -> int | None:
    match consumer.op_type, place:
        case "Conv", 1:
            return 0
        case "ConvTranspose", 1:
            return 1
        case "MatMul", 0 | 1:
            return rank - 2 + place if rank > 1 else None
        case "Gemm", 0 | 1:
            transposed = bool(attribute(consumer, "transB" if place else "transA", 0))
            return int(transposed != bool(place))
    return None


def pairs_disagree(view: View) -> Iterator[Finding]:
    """Report Q/DQ pairs that disagree: a DQ must have its Q's scale, zero point and axis."""
    import numpy as np

    for node in view.every(DEQUANTIZE):
        before = view.graph.producer(node.input[0])
        if before is None or before.op_type != QUANTIZE:
            continue
        for place, part in ((1, "scale"), (2, "zero point")):
            ours, theirs = (view.constant(operand(n, place)) if operand(n, place) else None for n in (node, before))
            if ours is not None and theirs is not None and not np.array_equal(ours, theirs):
                message = f"reads with another {part} than {before.name} wrote with"
                yield Finding("pair-disagrees", "error", node.name, message, "give both the same initialisers")
        if view.is_per_channel(node) and attribute(node, "axis", 1) != attribute(before, "axis", 1):
            message = f"reads along another axis than {before.name} wrote along"
            yield Finding("pair-disagrees", "error", node.name, message, "give both the same axis")


def per_channel_activation(view: View) -> Iterator[Finding]:
    """Report per-channel activations: the kernels of both engines take a vector of scales for weights only."""
    for node in view.activations():
        if view.is_per_channel(node):
            message = "gives an activation a scale per channel"
            severity: Literal["error", "warning"] = "error" if view.tensorrt else "warning"
            yield Finding("per-channel-activation", severity, node.name, message, "quantise activations per tensor")


def mixed_formats(view: View) -> Iterator[Finding]:
    """Report INT8 mixed with FP8 in one network (NVIDIA's guide)."""
    kinds: dict[str, str] = {}
    for node in view.every(DEQUANTIZE):
        kind = view.dtype(node.input[0])
        if kind == "INT8" or kind.startswith("FLOAT8"):
            kinds.setdefault(kind, node.name)
    if view.tensorrt and "INT8" in kinds and len(kinds) > 1:
        other_format, node_name = next((k, n) for k, n in kinds.items() if k != "INT8")
        message = f"works on {other_format} in a graph that has INT8 too ({kinds['INT8']})"
        yield Finding("mixed-formats", "error", node_name, message, "choose one of the two for the whole graph")


SCALE_RULES = (
    missing_scale,
    bad_scale,
    zero_point,
    unsigned,
    integer_type,
    scale_count,
    wrong_axis,
    pairs_disagree,
    per_channel_activation,
    mixed_formats,
)
