"""What the inspector of TensorRT tells of a plan's layers and tensors, and whether they are as precise as was asked.

The JSON is that of `IEngineInspector` and of `trtexec --exportLayerInfo`. TensorRT 10 has `Bindings`, a list of names,
and one text for format and dtype, such as "Channel major FP16 format where channel % 8 == 0", "Half", or "N/A due to
dynamic shapes"; TensorRT 11 has `I/O Tensors` and splits the text:
https://docs.nvidia.com/deeplearning/tensorrt/11.0.0/api/migration/tensorrt-10x-to-11x-IEngineInspector.html.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plansmith.compilers.precision.lint.view import View
from plansmith.errors import EngineError, first_line
from plansmith.records.engine import PlanLayer, PlanTensor
from plansmith.records.model import EngineKind, HighPrecisionNode, Precision

_DTYPES = {
    **dict.fromkeys(("float", "fp32", "float32"), "float32"),
    **dict.fromkeys(("half", "fp16", "float16"), "float16"),
    **dict.fromkeys(("bf16", "bfloat16"), "bfloat16"),
    **dict.fromkeys(("fp8", "float8"), "float8_e4m3fn"),
    **dict.fromkeys(("fp4", "float4"), "float4_e2m1fn"),
    **{name: name for name in ("int4", "int8", "int32", "int64", "uint8", "bool")},
}
_FP32 = "float32"
_LOW = ("float4_e2m1fn", "int4", "float8_e4m3fn", "int8", "bfloat16", "float16")
_ASKED = {
    Precision.FP16: "float16",
    Precision.BF16: "bfloat16",
    Precision.INT8: "int8",
    Precision.FP8: "float8_e4m3fn",
}

# Kinds of layers that do nothing else; "correlation" is what Myelin, TensorRT's second compiler, calls a convolution.
_COMPUTING = re.compile("conv|gemm|matrixmultiply|matmul|fullyconnected|correlation", re.IGNORECASE)
# Kinds that are whole pieces of a graph in one; nothing tells what is inside.
_OPAQUE = re.compile("myelin|foreignnode", re.IGNORECASE)
_FUSED = re.compile("kgen|fusion", re.IGNORECASE)
_ATTENTION = re.compile("mha|attention", re.IGNORECASE)
_KERNEL = re.compile(r"__myl_([A-Za-z]+)")
_WORD = re.compile("[A-Z][a-z]*")
COMPUTING_OPS = ("Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum", "Attention", "LSTM", "GRU", "RNN", "DeformConv")

# Kernels name the dtypes of what they multiply before those of what comes out: sm80_xmma_gemm_f16f16_f16f32_f32_….
_HASH = re.compile("0x[0-9a-f]+")
_TACTICS = (
    (re.compile(r"(?<![a-z])(bf16bf16|bf16_bf16)"), "bfloat16"),
    (re.compile(r"(?<![a-z])(f16f16|f16_f16|fp16)|_h\d+(gemm|cudnn)|hmma"), "float16"),
    (re.compile(r"(?<![a-z])(i8i8|i8f32|i8f16|int8)|imma"), "int8"),
    (re.compile(r"(?<![a-z])(e4m3|f8_f8|f8f8)"), "float8_e4m3fn"),
    (re.compile(r"(?<![a-z])(f32f32|tf32f32|f32_f32)|_sgemm|_scudnn"), _FP32),
)
_NODE = re.compile(r"\[ONNX Layer: (.*?)\](?=[\[\x1e\x1f]|$)")
_PROFILE = re.compile(r" \[profile \d+\]$")
_MOST_LISTED = 10


def nodes_in_fp32(path: Path) -> tuple[HighPrecisionNode, ...]:
    """The nodes of a graph that multiply in FP32, as its author or a recipe left them: their layers may, too.

    Args:
        path: the ONNX file; its weights are not read.
    """
    import onnx

    view = View(onnx.load(path, load_external_data=False), EngineKind.TENSORRT, folder=path.parent)
    return tuple(
        HighPrecisionNode(node=node.name, op_type=node.op_type, reason="FP32 in the graph")
        for node in view.inside(*COMPUTING_OPS)
        if view.dtype(node.input[0]) == "FLOAT" and view.dequantizer(node.input[0]) is None
    )


def read_layers(text: str) -> tuple[PlanLayer, ...]:
    """The layers of a plan in the order of their execution; without dtypes where the plan tells names alone.

    Raises:
        EngineError: it is no JSON of an inspector.
    """
    return layers_of(_document(text))


def layers_of(document: Mapping[str, Any]) -> tuple[PlanLayer, ...]:
    """As `read_layers`, of the JSON as it was parsed."""
    layers = document.get("Layers") or []
    return tuple(
        _layer(entry) if isinstance(entry, dict) else PlanLayer(name=str(entry), kind="", inputs=(), dtypes=())
        for entry in layers
    )


def read_tensors(text: str) -> tuple[PlanTensor, ...]:
    """The inputs and outputs of a plan, as far as its inspector describes them; those that it only names are left out.

    In TensorRT 10 they are described by the layers that read and write them alone: without a dtype where shapes vary.

    Raises:
        EngineError: as for `read_layers`.
    """
    document = _document(text)
    if "I/O Tensors" in document:
        return tuple(_io_tensor(entry) for entry in document["I/O Tensors"])
    read, written = _by_name(document, "Inputs"), _by_name(document, "Outputs")
    names = [name for name in document.get("Bindings") or [] if not _PROFILE.search(name)]
    return tuple(
        PlanTensor(
            name=name,
            is_input=name not in written,
            dtype=_dtype(tensor),
            dims=tuple(tensor.get("Dimensions") or ()),
            format=_format(tensor),
        )
        for name in names
        if (tensor := written.get(name) or read.get(name)) is not None
    )


def layers_above(
    layers: Sequence[PlanLayer], precision: Precision, kept: Sequence[HighPrecisionNode] = ()
) -> tuple[PlanLayer, ...]:
    """The layers that compute in FP32 (or TF32, which is stored so) although less was asked.

    Args:
        layers: of a plan.
        precision: of its graph.
        kept: nodes that the recipe left in higher precision on purpose; a layer that stands for one is left out.
    """
    if precision is Precision.FP32:
        return ()
    high = {node.node for node in kept if node.op_type in COMPUTING_OPS}
    return tuple(
        layer for layer in layers if layer.computes and layer.operands == _FP32 and high.isdisjoint(layer.nodes)
    )


def require_precision(
    layers: Sequence[PlanLayer], precision: Precision, kept: Sequence[HighPrecisionNode] = ()
) -> tuple[str, ...]:
    """See that a plan computes in what was asked for; what it does not tell is said in the words that come back.

    Raises:
        EngineError: lists the layers that came out in FP32, or says that none computes in the precision.
    """
    if precision is Precision.FP32:
        return ()
    asked, computing = precision.upper(), [layer for layer in layers if layer.computes]
    above = layers_above(layers, precision, kept)
    if above:
        more = len(above) - _MOST_LISTED
        lines = [f"{layer.name} ({layer.kind}{layer.tactic and f', {layer.tactic}'})" for layer in above[:_MOST_LISTED]]
        said = (
            f"{len(above)} of {len(computing)} layers of the plan that compute came out in FP32, and {asked} was asked"
        )
        raise EngineError(
            "\n  ".join([f"{said}:", *lines, *([f"… and {more} more"] if more > 0 else [])]),
            remedy="a plan takes its precision from its graph, which has these in FP32: look at what plansmith lower"
            " makes of them, or keep them so on purpose with lowering: {keep: [NODE]}",
        )
    told = [layer for layer in computing if layer.operands]
    if not any(layer.kind for layer in layers):
        return (f"whether the plan computes in {asked}: it tells nothing of its layers but their names, if these",)
    if not computing:
        return (f"whether the plan computes in {asked}: it names no layer that multiplies matrices or convolves",)
    if len(told) == len(computing) and not any(layer.operands == _ASKED[precision] for layer in told):
        found = ", ".join(sorted({layer.operands for layer in told}))
        raise EngineError(
            f"no layer of the plan computes in {asked}, which was asked: all {len(told)} that compute do so in {found}",
            remedy="compile a graph that is lowered to it: plansmith lower shows what becomes of one",
        )
    if len(told) == len(computing):
        return ()
    untold = f"{len(computing) - len(told)} of {len(computing)} layers that compute"
    return (f"the precision of {untold}: the plan does not tell it",)


def _document(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise _unreadable(first_line(error)) from error
    if not isinstance(document, dict):
        raise _unreadable("it is no object")
    return document


def _unreadable(why: str) -> EngineError:
    return EngineError(
        f"what TensorRT tells of the plan's layers cannot be read: {why}",
        remedy="build the plan again; if it stays so, please report this with the file layers.json",
    )


def _layer(entry: Mapping[str, Any]) -> PlanLayer:
    name, kind = str(entry.get("Name", "")), str(entry.get("LayerType", ""))
    tactic = str(entry.get("TacticName", ""))
    nodes = _nodes(name, str(entry.get("Metadata", "")))
    inputs, outputs = entry.get("Inputs") or [], entry.get("Outputs") or []
    computes = _computes(name, kind, nodes)
    return PlanLayer(
        name=name,
        kind=kind,
        inputs=tuple(str(tensor.get("Name", "")) for tensor in inputs),
        dtypes=tuple(filter(None, map(_dtype, outputs))),
        tactic=tactic,
        computes=computes,
        operands=_operands(entry, tactic) if computes and not _is_opaque(name, kind) else "",
        nodes=nodes,
    )


def _nodes(name: str, metadata: str) -> tuple[str, ...]:
    """The ONNX nodes of a layer: by its metadata, or where it has none by its name, in which they are joined."""
    found = _NODE.findall(metadata)
    return tuple(dict.fromkeys(found or name.split(" + ")))


def _is_opaque(name: str, kind: str) -> bool:
    return bool(_OPAQUE.search(kind) or name.startswith("{ForeignNode["))


def _computes(name: str, kind: str, nodes: Sequence[str]) -> bool:
    """Whether a layer multiplies matrices or convolves; Myelin's fused kernels tell it by the words in their names."""
    if _is_opaque(name, kind) or _COMPUTING.search(kind):
        return True
    if not _FUSED.search(kind):
        return False
    kernel = _KERNEL.match(name)
    words = _WORD.findall(kernel[1]) if kernel else []
    if not {"Fc", "Corr"}.isdisjoint(words) or _ATTENTION.search(name):
        return True
    # Most exporters name a node by its operator; of a kernel of Myelin's own making, its name tells more.
    last = {word for node in nodes for word in re.split("[_.]", node.rpartition("/")[2])}
    return not kernel and not last.isdisjoint(COMPUTING_OPS)


def _operands(entry: Mapping[str, Any], tactic: str) -> str:
    """The dtype of what a layer multiplies: of its weights, by the kernel's name, or of its inputs; empty if untold.

    Inputs that differ are operands beside scales, masks and the like: the lowest is what is multiplied. A layer that
    reads FP32 and writes less may begin with a cast or end with one: its largest constant, which is its weights, tells.
    """
    weights = entry.get("Weights")
    if isinstance(weights, dict) and (found := _dtype_in(str(weights.get("Type", "")))):
        return found
    kernel = _HASH.sub("", tactic.lower())
    named = [(match.start(), dtype) for pattern, dtype in _TACTICS if (match := pattern.search(kernel))]
    if named:
        return min(named)[1]
    read, written = ({_dtype(t) for t in entry.get(side) or []} for side in ("Inputs", "Outputs"))
    for dtype in _LOW:
        if dtype in read:
            return dtype
    if _FP32 in read and written == {_FP32}:
        return _FP32
    constants = [tensor for tensor in entry.get("Constants") or [] if len(tensor.get("Dimensions") or ()) > 1]
    return _dtype(max(constants, key=lambda tensor: math.prod(tensor["Dimensions"]))) if constants else ""


def _io_tensor(entry: Mapping[str, Any]) -> PlanTensor:
    profiles = entry.get("ProfileInfo") or [{}]
    return PlanTensor(
        name=str(entry["Name"]),
        is_input=str(entry.get("IOMode", "")).lower() == "input",
        dtype=_dtype(entry),
        dims=tuple(entry.get("Dimensions") or ()),
        format=_format(entry) or str(profiles[0].get("Format", "")),
        is_shape=bool(entry.get("IsShapeInferenceIO", False)),
    )


def _by_name(document: Mapping[str, Any], side: str) -> dict[str, Mapping[str, Any]]:
    """The tensors that layers read or write; of several mentions the first that tells its dtype."""
    found: dict[str, Mapping[str, Any]] = {}
    for layer in document.get("Layers") or []:
        for tensor in layer.get(side) or [] if isinstance(layer, dict) else []:
            name = str(tensor.get("Name", ""))
            if name not in found or not _dtype(found[name]):
                found[name] = tensor
    return found


def _dtype(tensor: Mapping[str, Any]) -> str:
    """NumPy's name of a tensor's dtype; empty where it is not told."""
    for key in ("Datatype", "DataType", "Format/Datatype", "Format"):
        if found := _dtype_in(str(tensor.get(key, ""))):
            return found
    return ""


def _dtype_in(words: str) -> str:
    return next((_DTYPES[word] for word in re.findall("[a-z]+[0-9]*", words.lower()) if word in _DTYPES), "")


def _format(tensor: Mapping[str, Any]) -> str:
    """How a tensor lies in memory, in TensorRT's words; empty where only the dtype, or nothing, is told."""
    words = str(tensor.get("Format") or tensor.get("Format/Datatype") or "")
    return "" if words.startswith("N/A") or words.lower() in _DTYPES else words
