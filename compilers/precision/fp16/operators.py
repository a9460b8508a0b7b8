"""What operators can do in sixteen bits, read from ONNX's own schemas."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plansmith.compilers.precision.fp16.format import FLOAT, Format
from plansmith.compilers.precision.graph import subgraphs

if TYPE_CHECKING:
    import onnx

MOVES = frozenset(
    {
        "Concat",
        "DepthToSpace",
        "Expand",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "Identity",
        "Reshape",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    }
)
"""Operators that move numbers and compute none: in sixteen bits they change nothing that is not rounded already."""

_TYPED_BY_ATTRIBUTE = frozenset(
    {"Bernoulli", "ConstantOfShape", "EyeLike", "RandomNormal", "RandomNormalLike", "RandomUniform"}
    | {"RandomUniformLike", "SequenceEmpty", "HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix"}
)
_STANDARD = {"", "ai.onnx"}


@dataclass(frozen=True)
class Slots:
    """Which floating-point inputs and outputs of a node, by place, take sixteen bits; the others stay FP32."""

    inputs: frozenset[int]
    outputs: frozenset[int]


def opset(model: onnx.ModelProto) -> int:
    """The version of ONNX's own operators that a model uses."""
    return next(o.version for o in model.opset_import if o.domain in _STANDARD)


def slots(node: onnx.NodeProto, floats: Collection[str], form: Format, version: int) -> Slots | str:
    """Where a node takes sixteen bits; in words why it cannot.

    Args:
        node: takes or gives FP32.
        floats: the names of all tensors in FP32.
        form: the format.
        version: the opset.
    """
    import onnx

    refusal = _refusal(node)
    if refusal:
        return refusal
    if node.op_type == "Cast":
        return Slots(*(frozenset({0} & {i for i, t in enumerate(s) if t in floats}) for s in (node.input, node.output)))
    schema = onnx.defs.get_schema(node.op_type, max_inclusive_version=version, domain="")

    def allowed(formals: list[onnx.defs.OpSchema.FormalParameter], names: Collection[str]) -> frozenset[int]:
        typed = enumerate(zip(names, [*formals, *formals[-1:] * len(names)], strict=False))
        return frozenset(i for i, (t, formal) in typed if t in floats and form.schema_type in formal.types)

    found = Slots(allowed(list(schema.inputs), node.input), allowed(list(schema.outputs), node.output))
    outputs = {i for i, name in enumerate(node.output) if name in floats}
    if outputs != found.outputs or (not outputs and not found.inputs):
        return f"{node.op_type} has no {form.words} form in opset {version}"
    return found


def _refusal(node: onnx.NodeProto) -> str:
    """Why a node stays as it is whatever types its operator takes; empty for nothing."""
    if node.domain not in _STANDARD:
        return f"{node.domain}.{node.op_type} is no operator of ONNX, so that nothing says what types it takes"
    if any(True for _ in subgraphs(node)):
        return "it holds a subgraph, which stays as it is"
    if node.op_type in _TYPED_BY_ATTRIBUTE:
        return "it makes its numbers itself, in FP32"
    if node.op_type == "LayerNormalization" and len([o for o in node.output if o]) > 1:
        return "mean and deviation, which it gives too, are FP32"
    return ""


def gains(model: onnx.ModelProto, form: Format) -> bool:
    """Whether some operator of a model takes a format only in the newer opset that the format asks for."""
    import onnx

    def takes(node: onnx.NodeProto, version: int) -> bool:
        formals = onnx.defs.get_schema(node.op_type, max_inclusive_version=version, domain="").outputs
        return any(form.schema_type in formal.types for formal in formals)

    old = opset(model)
    standard = [n for n in model.graph.node if n.domain in _STANDARD] if old < form.opset else []
    return any(takes(node, form.opset) and not takes(node, old) for node in standard)


def rename_inside(node: onnx.NodeProto, names: dict[str, str]) -> None:
    """Have the subgraphs of a node take tensors from outside under other names: old to new."""
    for graph in subgraphs(node):
        for inner in graph.node:
            inner.input[:] = [names.get(name, name) for name in inner.input]
            rename_inside(inner, names)
        for value in graph.output:
            value.name = names.get(value.name, value.name)


def cast_target(node: onnx.NodeProto) -> int:
    """What a Cast casts to, as ONNX's number."""
    return int(next(a.i for a in node.attribute if a.name == "to"))


def casts_to_float(node: onnx.NodeProto) -> bool:
    """Whether a node is a Cast to FP32."""
    return node.op_type == "Cast" and cast_target(node) == FLOAT
