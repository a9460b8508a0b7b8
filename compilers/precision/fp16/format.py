"""16-bit formats: their range and precision, and the operators that ONNX defines in them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plansmith.compilers.precision.graph import subgraphs
from plansmith.records.model import Precision

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray


FLOAT = 1
"""ONNX's number for FP32."""

_HEADROOM = 4
"""How far a value may grow beyond the largest that calibration saw before it leaves the format.

Calibration sees a sample of what the model will be asked. The largest of many values grows slowly with their number,
but a square doubles its distance in bits, so two bits are left: inputs may be twice as large even where they are
squared. A larger margin would keep nodes in FP32 that gain nothing from it and cost two casts each.
"""

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
class Format:
    """A 16-bit floating-point format.

    Attributes:
        precision: what a recipe calls it.
        element: ONNX's number for it.
        largest: the largest finite number.
        smallest_normal: below it numbers lose their digits one by one.
        digits: bits of the significand, the hidden one included: whole numbers are exact up to two to their power.
        opset: the first that has the usual operators in it; a graph of an older one is converted where that helps.
    """

    precision: Precision
    element: int
    largest: float
    smallest_normal: float
    digits: int
    opset: int

    @property
    def label(self) -> str:
        """The format's name in messages."""
        return self.precision.upper()

    @property
    def limit(self) -> float:
        """The largest magnitude that calibration may have observed in a tensor of this format."""
        return self.largest / _HEADROOM

    @property
    def exact(self) -> int:
        """The largest integer up to which integers, and sums of that many equal terms, are exact."""
        return 1 << self.digits

    @property
    def schema_type(self) -> str:
        """The tensor type's name in operator schemas."""
        return "tensor(float16)" if self.precision is Precision.FP16 else "tensor(bfloat16)"

    def rounded(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values rounded to the nearest in this format; those too large become infinite."""
        import numpy as np
        import onnx

        with np.errstate(over="ignore"):
            return np.asarray(values).astype(onnx.helper.tensor_dtype_to_np_dtype(self.element))

    def relative_error(self, values: NDArray[Any]) -> float:
        """Return the root mean square of the rounding error relative to that of the values; 0 if all are zero."""
        import numpy as np

        exact = np.asarray(values, np.float64)
        power = float(np.square(exact).sum())
        with np.errstate(invalid="ignore"):
            lost = float(np.square(self.rounded(values).astype(np.float64) - exact).sum())
        return (lost / power) ** 0.5 if power else 0.0


FP16 = Format(Precision.FP16, element=10, largest=65504.0, smallest_normal=2.0**-14, digits=11, opset=1)
BF16 = Format(
    Precision.BF16, element=16, largest=(2 - 2.0**-7) * 2.0**127, smallest_normal=2.0**-126, digits=8, opset=22
)
FORMATS = {form.precision: form for form in (FP16, BF16)}


def number(value: float) -> str:
    """Format a magnitude: as an integer with spaces where readable, else with two digits and an exponent."""
    size = abs(value)
    return f"{value:,.0f}".replace(",", " ") if 100 <= size < 1e7 else f"{value:.2g}"


@dataclass(frozen=True)
class Slots:
    """The floating-point inputs and outputs of a node, by index, that are 16-bit; the others stay FP32."""

    inputs: frozenset[int]
    outputs: frozenset[int]


def opset(model: onnx.ModelProto) -> int:
    """Return the version of the standard ONNX opset that a model uses."""
    return next(o.version for o in model.opset_import if o.domain in _STANDARD)


def slots(node: onnx.NodeProto, floats: Collection[str], form: Format, version: int) -> Slots | str:
    """Return which inputs and outputs of a node can be 16-bit, or why none can.

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

    result = Slots(allowed(list(schema.inputs), node.input), allowed(list(schema.outputs), node.output))
    outputs = {i for i, name in enumerate(node.output) if name in floats}
    if outputs != result.outputs or (not outputs and not result.inputs):
        return f"{node.op_type} has no {form.label} form in opset {version}"
    return result


def _refusal(node: onnx.NodeProto) -> str:
    """Why a node stays FP32 whatever types its operator supports; empty where it does not."""
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
    """Whether some operator of a model supports a format only in the newer opset that the format requires."""
    import onnx

    def takes(node: onnx.NodeProto, version: int) -> bool:
        formals = onnx.defs.get_schema(node.op_type, max_inclusive_version=version, domain="").outputs
        return any(form.schema_type in formal.types for formal in formals)

    old = opset(model)
    standard = [n for n in model.graph.node if n.domain in _STANDARD] if old < form.opset else []
    return any(takes(node, form.opset) and not takes(node, old) for node in standard)


def rename_inside(node: onnx.NodeProto, names: dict[str, str]) -> None:
    """Rename outer tensors used in the subgraphs of a node: old to new."""
    for graph in subgraphs(node):
        for inner in graph.node:
            inner.input[:] = [names.get(name, name) for name in inner.input]
            rename_inside(inner, names)
        for value in graph.output:
            value.name = names.get(value.name, value.name)


def cast_target(node: onnx.NodeProto) -> int:
    """Return a Cast's target type, as ONNX's number."""
    return int(next(a.i for a in node.attribute if a.name == "to"))


def casts_to_float(node: onnx.NodeProto) -> bool:
    """Whether a node is a Cast to FP32."""
    return node.op_type == "Cast" and cast_target(node) == FLOAT
