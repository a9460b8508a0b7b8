"""Rules on tensors: types that TensorRT does not have, or not there, and what its parser adds in FP32.

From its table's notes on types (docs/operators.md of onnx-tensorrt, TensorRT 10.15), `convertDtype`, `unaryHelper` and
`checkNotInvalidType` in its source, and DataType in NvInferRuntimeBase.h.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from plansmith.compilers.precision.lint.parser_table import RTX_API, TYPES, Version, before
from plansmith.compilers.precision.lint.view import DEQUANTIZE, QUANTIZE, Finding, View, attribute, operand

if TYPE_CHECKING:
    import onnx

_ORT = "set engine: onnxruntime"
_HALVES = ("FLOAT16", "BFLOAT16")
_INTEGERS = ("INT32", "INT64")
_LOW_BITS = ("FLOAT4E2M1", "FLOAT8E4M3FN", "INT4")
_NOT_IN_BF16 = ("DeformConv", "GRU", "GlobalLpPool", "LpPool", "Mish", "NonZero", "RoiAlign")
# Operators, inputs, the types of these that their importers refuse where ONNX allows them, and until which version.
# The release notes of 11.2 have GridSample.
_REFUSED: tuple[tuple[tuple[str, ...], tuple[int, ...], tuple[str, ...], Version | None], ...] = (
    (("MatMul", "Gemm", "Einsum"), (0,), _INTEGERS, None),
    (("PRelu",), (0, 1), _INTEGERS, None),
    (("ReduceMax", "ReduceMin"), (0,), ("BOOL",), None),
    (("Range",), (0, 1, 2), _HALVES, None),
    (("DepthToSpace", "GridSample", "Resize", "SpaceToDepth"), (0,), ("BOOL",), None),
    (("STFT",), (0,), _HALVES, RTX_API),
    (("GridSample",), (0,), ("BFLOAT16",), (11, 2)),
    (_NOT_IN_BF16, (0,), ("BFLOAT16",), None),
)


def strings(view: View) -> Iterator[Finding]:
    """TensorRT has no tensors of text."""
    if view.tensorrt:
        for value in view.model.graph.input:
            if view.dtype(value.name) == "STRING":
                words = f"input {value.name!r} is text"
                yield Finding("strings", "error", "", words, "tokenize before the model, or set engine: onnxruntime")


def kinds(view: View) -> Iterator[Finding]:
    """Types without a counterpart in TensorRT: 16-bit and unsigned integers, complex numbers, some of 8 bits."""
    if not view.tensorrt:
        return
    for value in view.model.graph.input:
        kind = view.dtype(value.name)
        if kind and kind not in TYPES and kind != "STRING":
            yield Finding("tensor-type", "error", "", f"input {value.name!r} is {kind}, which TensorRT has not", _ORT)
    for node in view.inside():
        found = sorted({view.dtype(n) for n in (*node.input, *node.output) if n} - TYPES - {""})
        if found and not (node.op_type == DEQUANTIZE and view.dtype(node.input[0]) in found):  # has a rule of its own
            words = f"works on {' and '.join(found)}, which TensorRT has not"
            yield Finding("tensor-type", "error", node.name, words, "cast to INT32, INT64 or FP32 in the model's code")


def bytes_inside(view: View) -> Iterator[Finding]:
    """UINT8 is for inputs, to be cast at once, and for outputs; of casts NVIDIA has FP32's and FP16's in writing."""
    if not view.tensorrt:
        return
    inputs, outputs = view.graph.inputs, view.graph.outputs
    for node in view.inside():
        if node.op_type in {QUANTIZE, DEQUANTIZE}:
            continue
        taken = [name for name in node.input if name and view.dtype(name) == "UINT8"]
        given = [name for name in node.output if name and view.dtype(name) == "UINT8"]
        if not taken and not given:
            continue
        is_entry = node.op_type == "Cast" and not given and all(name in inputs for name in taken)
        is_exit = node.op_type == "Cast" and not taken and all(name in outputs for name in given)
        other = view.dtype(node.output[0] if taken else node.input[0])
        if not is_entry and not is_exit:
            words = f"works on UINT8 ({(taken or given)[0]!r}), which TensorRT has only at its inputs and outputs"
            yield Finding("uint8-inside", "error", node.name, words, "cast to FP32 or FP16 right behind the input")
        elif other not in {"FLOAT", "FLOAT16"}:
            words = f"casts between UINT8 and {other}, which TensorRT's documentation does not allow"
            yield Finding("uint8-inside", "warning", node.name, words, "cast by way of FP32 or FP16")


def doubles(view: View) -> Iterator[Finding]:
    """The parser makes FP32 of FP64: inside that costs digits, at the interface clients send what is not taken."""
    if not view.tensorrt:
        return
    for value in (*view.model.graph.input, *view.model.graph.output):
        if view.dtype(value.name) == "DOUBLE":
            words = f"{value.name!r} is FP64, and FP32 in a plan"
            yield Finding("double-interface", "error", "", words, "cast inside of the model, to and from FP32")
    first = next((n for n in view.inside() if any(view.dtype(name) == "DOUBLE" for name in n.output if name)), None)
    if first is not None:
        words = "computes in FP64, and in FP32 in a plan"
        yield Finding("double-precision", "warning", first.name, words, "see that the accuracy gate agrees")


def low_casts(view: View) -> Iterator[Finding]:
    """Only QuantizeLinear makes numbers of 8 bits and fewer from wider ones: ICastLayer refuses such types."""
    for node in view.inside("Cast", "CastLike") if view.tensorrt else ():
        found = [view.dtype(name) for name in (node.input[0], node.output[0]) if view.dtype(name) in _LOW_BITS]
        if found:
            words = f"casts {found[0]}"
            yield Finding("low-cast", "error", node.name, words, "use QuantizeLinear and DequantizeLinear")


def refused_types(view: View) -> Iterator[Finding]:
    """Types that ONNX allows for an operator and TensorRT's importer of it does not."""
    for op_types, places, refused, until in _REFUSED if view.tensorrt else ():
        if until is not None and view.parser >= until:
            continue
        for node in view.inside(*op_types):
            found = [view.dtype(operand(node, place)) for place in places if operand(node, place)]
            wrong = next((kind for kind in found if kind in refused), None)
            if wrong is not None:
                words = f"is {node.op_type} of {wrong}, which TensorRT's parser refuses{before(until)}"
                yield Finding("refused-type", "error", node.name, words, "cast to FP32 before it in the model's code")


def parser_constants(view: View) -> Iterator[Finding]:
    """Operators that the parser writes with constants in FP32: strongly typed layers take no FP16 beside these.

    Of the factor 1/n of Mean, it keeps the last two bytes of four: 0 for two inputs, -0.05 for three, -19.2 for five.
    """
    for node in view.inside(*_IN_FP32) if view.tensorrt else ():
        kind = view.dtype(node.input[0])
        concerns, until = _IN_FP32[node.op_type]
        if kind in _HALVES and concerns(node) and (until is None or view.parser < until):
            words = f"is {node.op_type} of {kind}, to which TensorRT's parser adds FP32 constants{before(until)}"
            yield Finding("parser-constants", "error", node.name, words, "keep the node FP32")
    for node in view.inside("Mean") if view.tensorrt else ():
        kind = view.dtype(node.input[0])
        if kind in _HALVES:
            words = f"is Mean of {kind}, which a plan answers with wrong numbers, zeros for two inputs, without a word"
            yield Finding("parser-constants", "error", node.name, words, "keep the node FP32")


def _has_factors(node: onnx.NodeProto) -> bool:
    return attribute(node, "alpha", 1.0) != 1 or bool(operand(node, 2) and attribute(node, "beta", 1.0) != 1)


def _looks_at_one_sign(node: onnx.NodeProto) -> bool:
    return not (attribute(node, "detect_negative", 1) and attribute(node, "detect_positive", 1))


def _always(_: onnx.NodeProto) -> bool:
    return True


# Which nodes of an operator, and until which version.
_IN_FP32: dict[str, tuple[Callable[[onnx.NodeProto], bool], Version | None]] = {
    "Celu": (_always, None),
    "Gemm": (_has_factors, RTX_API),
    "IsInf": (_looks_at_one_sign, RTX_API),
    "MeanVarianceNormalization": (_always, None),
    "RNN": (lambda node: not operand(node, 5), RTX_API),
}

RULES = (strings, kinds, bytes_inside, doubles, low_casts, refused_types, parser_constants)
