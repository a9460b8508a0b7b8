"""Layer inspection: layers and tensors from TensorRT's engine inspector, and whether they have the requested precision.

The JSON is that of `IEngineInspector` and of `trtexec --exportLayerInfo`. TensorRT 10 has `Bindings`, a list of names,
and one text for format and dtype, such as "Channel major FP16 format where channel % 8 == 0", "Half", or "N/A due to
dynamic shapes"; TensorRT 11 has `I/O Tensors` and splits the text:
https://docs.nvidia.com/deeplearning/tensorrt/11.0.0/api/migration/tensorrt-10x-to-11x-IEngineInspector.html.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plansmith.errors import EngineError, first_line
from plansmith.records.engine import UNKNOWN, LayerCount, LayerSummary, PlanLayer, PlanTensor, dtypes_of
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

SLOWEST = 10
"""So many layers are named by how long they take, and as many of those above the asked precision."""

TITLE = "Layers:\n"
"""How the message begins."""

_TENSOR = re.compile(
    r"\{ Name: (?P<Name>.*?), (?:Location: \w+, )?Dimensions: (?P<Dimensions>\[[-\d,]*\]),"
    r" (?:Strides: \[[^]]*\], StrideOrder: \[[^]]*\], )?Datatype: (?P<Datatype>\w+), Format: (?P<Format>.*?) \}"
)
_LAYER = re.compile(
    r"Name: (?P<Name>.*?), LayerType: (?P<LayerType>\w+), Inputs: \[(?P<Inputs>(?: \{ .*? \})?)\],"
    r" (?:Constants: \[(?P<Constants>(?: \{ .*? \})?)\], )?Outputs: \[(?P<Outputs>(?: \{ .*? \})?)\], (?P<rest>.*)"
)
_TACTIC = re.compile(r"TacticName: (.*?), StreamId: ")
_METADATA = re.compile(r"Metadata: (.*)")
_IO_TENSOR = re.compile(
    r" Name: (?P<Name>.*?), IOMode: (?P<IOMode>\w+), DataType: (?P<Datatype>\w+),"
    r" Dimensions: (?P<Dimensions>\[[-\d,]*\]),"
    r" Location: \w+, IsShapeInferenceIO: (?P<IsShapeInferenceIO>\w+), ProfileInfo: (?P<ProfileInfo>.*)"
)
_PROFILE_FORMAT = re.compile(r"Format: (.*?) \}")


def nodes_in_fp32(path: Path) -> tuple[HighPrecisionNode, ...]:
    """Return the graph nodes that multiply in FP32, by their author or a recipe, so that their layers may as well.

    Args:
        path: the ONNX file; weights beside it are not read.
    """
    import onnx

    from plansmith.compilers.precision.lint.view import View  # and with it NumPy, which the driver does without

    view = View(onnx.load(path, load_external_data=False), EngineKind.TENSORRT, folder=path.parent)
    return tuple(
        HighPrecisionNode(node=node.name, op_type=node.op_type, reason="FP32 in the graph")
        for node in view.inside(*COMPUTING_OPS)
        if view.dtype(node.input[0]) == "FLOAT" and view.dequantizer(node.input[0]) is None
    )


def read_layers(text: str) -> tuple[PlanLayer, ...]:
    """Parse the layers of a plan in execution order; without dtypes if the plan contains only names.

    Raises:
        EngineError: it is no JSON of an inspector.
    """
    return layers_of(_document(text))


def layers_of(document: Mapping[str, Any]) -> tuple[PlanLayer, ...]:
    """As `read_layers`, for parsed JSON."""
    layers = document.get("Layers") or []
    return tuple(
        _layer(entry) if isinstance(entry, dict) else PlanLayer(name=str(entry), kind="", inputs=(), dtypes=())
        for entry in layers
    )


def read_tensors(text: str) -> tuple[PlanTensor, ...]:
    """Parse the inputs and outputs of a plan, as far as its inspector describes them; those only named are omitted.

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
    layers: Sequence[PlanLayer], precision: Precision, high_nodes: Sequence[HighPrecisionNode] = ()
) -> tuple[PlanLayer, ...]:
    """Return the layers that compute in FP32 (or TF32, which is stored as FP32) despite a lower requested precision.

    Args:
        layers: of a plan.
        precision: of its graph.
        high_nodes: nodes that the recipe left in higher precision on purpose; a layer that stands for one is left out.
    """
    if precision is Precision.FP32:
        return ()
    high = {node.node for node in high_nodes if node.op_type in COMPUTING_OPS}
    return tuple(
        layer for layer in layers if layer.computes and layer.operands == _FP32 and high.isdisjoint(layer.nodes)
    )


def require_precision(
    layers: Sequence[PlanLayer], precision: Precision, high_nodes: Sequence[HighPrecisionNode] = ()
) -> tuple[str, ...]:
    """Require that a plan computes in the requested precision; return notes on what it does not report.

    Raises:
        EngineError: lists the layers that came out in FP32, or says that none computes in the precision.
    """
    if precision is Precision.FP32:
        return ()
    requested, computing = precision.upper(), [layer for layer in layers if layer.computes]
    above = layers_above(layers, precision, high_nodes)
    if above:
        more = len(above) - _MOST_LISTED
        lines = [f"{layer.name} ({layer.kind}{layer.tactic and f', {layer.tactic}'})" for layer in above[:_MOST_LISTED]]
        message = (
            f"{len(above)} of {len(computing)} layers of the plan that compute"
            f" came out in FP32, and {requested} was asked"
        )
        raise EngineError(
            "\n  ".join([f"{message}:", *lines, *([f"… and {more} more"] if more > 0 else [])]),
            remedy="a plan takes its precision from its graph, which has these in FP32: look at what plansmith lower"
            " makes of them, or keep them so on purpose with lowering: {keep: [NODE]}",
        )
    typed_layers = [layer for layer in computing if layer.operands]
    if not any(layer.kind for layer in layers):
        return (f"whether the plan computes in {requested}: it tells nothing of its layers but their names, if these",)
    if not computing:
        return (f"whether the plan computes in {requested}: it names no layer that multiplies matrices or convolves",)
    if len(typed_layers) == len(computing) and not any(layer.operands == _ASKED[precision] for layer in typed_layers):
        dtypes = ", ".join(sorted({layer.operands for layer in typed_layers}))
        raise EngineError(
            f"no layer of the plan computes in {requested}, which was asked: all"
            f" {len(typed_layers)} that compute do so in {dtypes}",
            remedy="compile a graph that is lowered to it: plansmith lower shows what becomes of one",
        )
    if len(typed_layers) == len(computing):
        return ()
    untold = f"{len(computing) - len(typed_layers)} of {len(computing)} layers that compute"
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
    """The ONNX nodes of a layer: from its metadata, or else from its name, which joins them."""
    names = _NODE.findall(metadata)
    return tuple(dict.fromkeys(names or name.split(" + ")))


def _is_opaque(name: str, kind: str) -> bool:
    return bool(_OPAQUE.search(kind) or name.startswith("{ForeignNode["))


def _computes(name: str, kind: str, nodes: Sequence[str]) -> bool:
    """Whether a layer is a matrix product or convolution; for Myelin's fused kernels this follows from their names."""
    if _is_opaque(name, kind) or _COMPUTING.search(kind):
        return True
    if not _FUSED.search(kind):
        return False
    kernel = _KERNEL.match(name)
    tokens = _WORD.findall(kernel[1]) if kernel else []
    if not {"Fc", "Corr"}.isdisjoint(tokens) or _ATTENTION.search(name):
        return True
    # Most exporters name a node by its operator; of a kernel of Myelin's own making, its name tells more.
    last = {word for node in nodes for word in re.split("[_.]", node.rpartition("/")[2])}
    return not kernel and not last.isdisjoint(COMPUTING_OPS)


def _operands(entry: Mapping[str, Any], tactic: str) -> str:
    """The operand dtype of a layer: from its weights, the kernel's name or its inputs; empty where unknown.

    Inputs that differ are operands beside scales, masks and the like: the lowest is what is multiplied. A layer that
    reads FP32 and writes less may begin with a cast or end with one: its largest constant, which is its weights, tells.
    """
    weights = entry.get("Weights")
    if isinstance(weights, dict) and (type_name := _dtype_in(str(weights.get("Type", "")))):
        return type_name
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
    """The tensors that layers read or write, by name; the first entry with a dtype is used."""
    tensors_by_name: dict[str, Mapping[str, Any]] = {}
    for layer in document.get("Layers") or []:
        for tensor in layer.get(side) or [] if isinstance(layer, dict) else []:
            name = str(tensor.get("Name", ""))
            if name not in tensors_by_name or not _dtype(tensors_by_name[name]):
                tensors_by_name[name] = tensor
    return tensors_by_name


def _dtype(tensor: Mapping[str, Any]) -> str:
    """NumPy's name of a tensor's dtype; empty where unknown."""
    for key in ("Datatype", "DataType", "Format/Datatype", "Format"):
        if dtype := _dtype_in(str(tensor.get(key, ""))):
            return dtype
    return ""


def _dtype_in(text: str) -> str:
    return next((_DTYPES[word] for word in re.findall("[a-z]+[0-9]*", text.lower()) if word in _DTYPES), "")


def _format(tensor: Mapping[str, Any]) -> str:
    """A tensor's memory format, as TensorRT names it; empty where it gives only the dtype, or nothing."""
    text = str(tensor.get("Format") or tensor.get("Format/Datatype") or "")
    return "" if text.startswith("N/A") or text.lower() in _DTYPES else text


def stored_layers(file: Path) -> tuple[PlanLayer, ...]:
    """Read the layers of a plan, as written by its build."""
    return tuple(PlanLayer.model_validate(layer) for layer in json.loads(file.read_text(encoding="utf-8")))


def summarise(layers: Sequence[PlanLayer], above: Sequence[PlanLayer] = (), *, most: int = SLOWEST) -> LayerSummary:
    """Count layers by kind and dtype, and name the most important.

    Args:
        layers: all of a plan, timed or not.
        above: the compute layers that came out in a higher precision than was asked for.
        most: how many layers a list names.
    """
    groups: dict[tuple[str, str], list[PlanLayer]] = {}
    for layer in layers:
        groups.setdefault((layer.kind, dtypes_of(layer)), []).append(layer)
    timed = [layer for layer in layers if layer.milliseconds is not None]
    return LayerSummary(
        layers=len(layers),
        counts=tuple(
            LayerCount(kind=kind, dtype=dtype, count=len(group), milliseconds=_together(group))
            for (kind, dtype), group in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
        ),
        computing=dict(Counter(layer.operands or UNKNOWN for layer in layers if layer.computes).most_common()),
        above_count=len(above),
        above=tuple(above[:most]),
        slowest=tuple(sorted(timed, key=lambda layer: -(layer.milliseconds or 0.0))[:most]),
        milliseconds=_together(layers),
    )


def timed(layers: Sequence[PlanLayer], times: Mapping[str, float]) -> tuple[PlanLayer, ...]:
    """Return the layers with the profiler's milliseconds, by name; layers that it omitted have none."""
    return tuple(layer.model_copy(update={"milliseconds": times.get(layer.name)}) for layer in layers)


def _together(layers: Sequence[PlanLayer]) -> float | None:
    """The total time of the timed layers; None where none was timed."""
    times = [layer.milliseconds for layer in layers if layer.milliseconds is not None]
    return sum(times) if times else None


def inspector_document(message: str) -> dict[str, Any]:
    """Return the inspector's JSON, parsed from the message; unreadable lines become layers with only a name."""
    layers, _, tensors = message.removeprefix(TITLE).partition("\n\nI/O Tensors:\n")
    return {
        "Layers": [_logged_layer(line) for line in layers.splitlines() if line],
        "I/O Tensors": [_logged_tensor(result) for line in tensors.splitlines() if (result := _IO_TENSOR.match(line))],
    }


def _logged_layer(line: str) -> dict[str, Any] | str:
    result = _LAYER.match(line)
    if result is None:
        return line
    tactic, metadata = _TACTIC.search(result["rest"]), _METADATA.search(result["rest"])
    return {
        "Name": result["Name"],
        "LayerType": result["LayerType"],
        **{side: _tensors(result[side] or "") for side in ("Inputs", "Constants", "Outputs")},
        "TacticName": tactic[1] if tactic else "",
        "Metadata": metadata[1] if metadata else "",
    }


def _tensors(text: str) -> list[dict[str, Any]]:
    return [match.groupdict() | {"Dimensions": json.loads(match["Dimensions"])} for match in _TENSOR.finditer(text)]


def _logged_tensor(match: re.Match[str]) -> dict[str, Any]:
    return {
        **match.groupdict(),
        "Dimensions": json.loads(match["Dimensions"]),
        "IsShapeInferenceIO": match["IsShapeInferenceIO"] == "true",
        "ProfileInfo": [{"Format": format_name} for format_name in _PROFILE_FORMAT.findall(match["ProfileInfo"])],
    }
