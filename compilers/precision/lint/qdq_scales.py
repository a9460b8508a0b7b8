"""Rules on the parameters of QuantizeLinear and DequantizeLinear: scales, zero points, axes, integer types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from plansmith.compilers.precision.lint.view import DEQUANTIZE, QUANTIZE, Finding, View, attribute, axis_of, operand

if TYPE_CHECKING:
    import onnx

_SYMMETRIC = "quantise symmetrically: signed integers and zero point 0"
_EIGHT_BITS = ("INT8", "FLOAT8E4M3FN", "FLOAT8E5M2", "INT4", "FLOAT4E2M1")


def missing_scale(view: View) -> Iterator[Finding]:
    """A scale is required by ONNX; TensorRT's documentation wants what a builder can compute (IQuantizeLayer)."""
    for node in view.every(QUANTIZE, DEQUANTIZE):
        scale = operand(node, 1)
        known = scale and (view.graph.producer(scale) or scale in view.graph.inputs or view.is_constant(scale))
        if not known:
            words = f"has no scale{f': nothing makes {scale!r}' if scale else ''}"
            yield Finding("missing-scale", "error", node.name, words, "calibrate the tensor and give its scale")
        elif view.tensorrt and not view.is_fixed(scale):
            words = f"takes a scale that depends on the inputs ({scale!r}), which TensorRT may refuse"
            yield Finding("computed-scale", "warning", node.name, words, "use static quantisation for TensorRT")


def bad_scale(view: View) -> Iterator[Finding]:
    """TensorRT's parser wants every coefficient positive; a subnormal one is zero where subnormals are flushed."""
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
                words = f"has a scale that is {kind} ({int(where.sum())} of {scale.size})"
                yield Finding("bad-scale", "error", node.name, words, "give a channel without values the scale 1")
                break


def zero_point(view: View) -> Iterator[Finding]:
    """TensorRT's parser refuses zero points other than 0 on a GPU."""
    if not view.tensorrt:
        return
    for node in view.every(QUANTIZE, DEQUANTIZE):
        name = operand(node, 2)
        value = view.constant(name) if name else None
        if value is not None and value.astype("float32").any():
            words = f"has the zero point {value.ravel()[value.astype('float32').ravel().nonzero()][0]}"
            yield Finding("asymmetric-zero-point", "error", node.name, words, _SYMMETRIC)
        elif name and value is None:
            yield Finding("asymmetric-zero-point", "error", node.name, "has a computed zero point", _SYMMETRIC)


def unsigned(view: View) -> Iterator[Finding]:
    """TensorRT's parser reads UINT8 as INT8 with a mere warning: codes above 127 change their value.

    ONNX means UINT8 where a QuantizeLinear has neither a zero point nor `output_dtype`.
    """
    if not view.tensorrt:
        return
    for node in view.every(QUANTIZE, DEQUANTIZE):
        kind = view.dtype(node.output[0] if node.op_type == QUANTIZE else node.input[0])
        if kind == "UINT8":
            implied = node.op_type == QUANTIZE and not operand(node, 2) and not attribute(node, "output_dtype")
            words = f"works on UINT8{', which ONNX means where no zero point is given' if implied else ''}"
            yield Finding("unsigned-quantisation", "error", node.name, words, _SYMMETRIC)


def integer_type(view: View) -> Iterator[Finding]:
    """TensorRT's DequantizeLayer takes eight bits or fewer; ONNX Runtime's INT32 biases are refused."""
    if not view.tensorrt:
        return
    for node in view.every(DEQUANTIZE):
        kind = view.dtype(node.input[0])
        if kind == "INT32":
            words = "dequantises an INT32 bias"
            yield Finding("int32-bias", "error", node.name, words, "leave biases in floating point")
        elif kind not in {"", "UINT8", *_EIGHT_BITS}:
            words = f"dequantises {kind}"
            yield Finding("quantised-type", "error", node.name, words, "use INT8")


def scale_count(view: View) -> Iterator[Finding]:
    """Along the axis there are as many scales, and zero points, as the tensor has channels (ONNX, both engines)."""
    for node in view.every(QUANTIZE, DEQUANTIZE):
        scale, shape = view.constant(operand(node, 1)), view.shape(node.input[0])
        if scale is None or attribute(node, "block_size", 0):
            continue
        zero = view.constant(operand(node, 2)) if operand(node, 2) else None
        if zero is not None and zero.size != scale.size:
            words = f"has {scale.size} scales and {zero.size} zero points"
            yield Finding("scale-count", "error", node.name, words, "give as many of the one as of the other")
        if scale.size == 1 or shape is None:
            continue
        axis = axis_of(node, len(shape))
        if not 0 <= axis < len(shape):
            words = f"names axis {axis} of a tensor with {len(shape)}"
            yield Finding("wrong-axis", "error", node.name, words, "name the axis of the output channels")
        elif shape[axis] not in {None, scale.size}:
            words = f"has {scale.size} scales for the {shape[axis]} channels of axis {axis}"
            yield Finding("scale-count", "error", node.name, words, "give one scale a channel, or one in all")


def wrong_axis(view: View) -> Iterator[Finding]:
    """Weights have a scale per output channel: only that factor can be taken out of the sum over the inputs.

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
                words = f"has scales along axis {axis} of a weight of {consumer.op_type} {consumer.name}, not {right}"
                yield Finding("wrong-axis", "error", node.name, words, "quantise weights per output channel")


def _weighted(view: View, tensor: str, axis: int) -> Iterator[tuple[onnx.NodeProto, int, int]]:
    """The operators that take a weight, the place of the input and where the axis went; through Transpose."""
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
    """What one scale wrote, another cannot read: a DQ has its Q's scale, zero point and axis."""
    import numpy as np

    for node in view.every(DEQUANTIZE):
        before = view.graph.producer(node.input[0])
        if before is None or before.op_type != QUANTIZE:
            continue
        for place, what in ((1, "scale"), (2, "zero point")):
            ours, theirs = (view.constant(operand(n, place)) if operand(n, place) else None for n in (node, before))
            if ours is not None and theirs is not None and not np.array_equal(ours, theirs):
                words = f"reads with another {what} than {before.name} wrote with"
                yield Finding("pair-disagrees", "error", node.name, words, "give both the same initialisers")
        if view.is_per_channel(node) and attribute(node, "axis", 1) != attribute(before, "axis", 1):
            words = f"reads along another axis than {before.name} wrote along"
            yield Finding("pair-disagrees", "error", node.name, words, "give both the same axis")


def per_channel_activation(view: View) -> Iterator[Finding]:
    """Activations have one scale: the kernels of both engines take a vector of scales for weights only."""
    for node in view.activations():
        if view.is_per_channel(node):
            words = "gives an activation a scale per channel"
            severity: Literal["error", "warning"] = "error" if view.tensorrt else "warning"
            yield Finding("per-channel-activation", severity, node.name, words, "quantise activations per tensor")


def mixed_formats(view: View) -> Iterator[Finding]:
    """NVIDIA's guide: no INT8 beside FP8 in one network."""
    kinds: dict[str, str] = {}
    for node in view.every(DEQUANTIZE):
        kind = view.dtype(node.input[0])
        if kind == "INT8" or kind.startswith("FLOAT8"):
            kinds.setdefault(kind, node.name)
    if view.tensorrt and "INT8" in kinds and len(kinds) > 1:
        other, node_name = next((k, n) for k, n in kinds.items() if k != "INT8")
        words = f"works on {other} in a graph that has INT8 too ({kinds['INT8']})"
        yield Finding("mixed-formats", "error", node_name, words, "choose one of the two for the whole graph")


RULES = (
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
