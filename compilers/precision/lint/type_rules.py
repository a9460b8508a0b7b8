"""Rules on types: what meets at an operator, what the interface promised, what a format of 16 bits cannot hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from plansmith.compilers.precision.lint.view import Finding, View, operand

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from numpy.typing import NDArray

_HALF_MAX = 65504.0
_HALF_TINY = 2.0**-14
# Of ordinary weights (deviation 0.02) one in 400 is subnormal in FP16; of a tensor with a quarter, much is lost.
_SUBNORMAL_SHARE = 0.25
_NOT_AT_ZERO = ("Div", "Log", "Pow", "Reciprocal", "Sqrt")


def mixed_types(view: View) -> Iterator[Finding]:
    """Operands that ONNX gives one type variable have one type; strongly typed networks do not convert by themselves.

    The reading of ONNX's own operator schemas, with the types that shape inference finds; TensorRT 10 and later say
    "incompatible types Int64 and Int32" where 8 converted (NVIDIA/TensorRT issues 4268 and 4493).
    """
    for node in view.inside():
        schema = _schema(node, view)
        if schema is None:
            continue
        variables: dict[str, dict[str, str]] = {}
        last = len(schema.inputs) - 1
        for place, name in enumerate(node.input):
            formal = schema.inputs[min(place, last)] if last >= 0 else None
            kind = view.dtype(name) if name else ""
            if formal is None or not kind:
                continue
            if formal.is_homogeneous:
                variables.setdefault(formal.type_str, {}).setdefault(kind, name)
            if f"tensor({_ONNX_NAMES.get(kind, kind.lower())})" not in formal.types:
                words = f"takes {kind} ({name}), which {node.op_type} does not know"
                yield Finding("operator-type", "error", node.name, words, "insert a Cast, or keep the node high")
        for kinds in variables.values():
            if len(kinds) > 1:
                words = f"mixes {' and '.join(f'{kind} ({name})' for kind, name in kinds.items())}"
                yield Finding("mixed-types", "error", node.name, words, "insert a Cast before one of them")


_ONNX_NAMES = {"FLOAT": "float", "DOUBLE": "double"}


def order(view: View) -> Iterator[Finding]:
    """ONNX lists nodes behind those that they read from; ONNX's checker and TensorRT's older parsers insist."""
    made = {*view.graph.inputs, *(t.name for t in view.model.graph.initializer), ""}
    for node in view.nodes:
        makers = [view.graph.producer(name) for name in node.input if name not in made]
        late = next((maker for maker in makers if maker is not None), None)
        if late is not None:
            words = f"stands before {late.name}, which makes one of its inputs"
            yield Finding("unsorted", "error", node.name, words, "sort the nodes by what they read")
            return
        made.update(node.output)


def inference(view: View) -> Iterator[Finding]:
    """ONNX's strict inference of types and shapes over the whole graph, with every disagreement an error."""
    import onnx

    from plansmith.errors import first_line

    try:
        onnx.shape_inference.infer_shapes(view.graph.model, check_type=True, strict_mode=True, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError) as error:
        words = f"types and shapes do not fit together: {first_line(error)}"
        yield Finding("inference", "error", "", words, "please report this with the model's name")


def interface(view: View) -> Iterator[Finding]:
    """Inputs and outputs are what the graph says of itself, and what was promised to clients."""
    import onnx

    remedy = "insert a Cast, or set lowering.lower_io where clients are to see the lower type"
    for value in view.model.graph.output:
        declared = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)
        found = view.dtype(value.name)
        if found and declared != found:
            words = f"output {value.name!r} is declared as {declared}, the graph computes {found}"
            yield Finding("interface", "error", "", words, remedy)
    if view.promised is None:
        return
    for promised, values in (
        (view.promised.inputs, view.model.graph.input),
        (view.promised.outputs, view.model.graph.output),
    ):
        given = {v.name: onnx.helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type).name for v in values}
        for tensor in promised:
            if given.get(tensor.name) != tensor.dtype:
                words = f"{tensor.name!r} was {tensor.dtype} and is {given.get(tensor.name, 'gone')}"
                yield Finding("interface", "error", "", words, remedy)


def constants(view: View) -> Iterator[Finding]:
    """FP16 ends at 65504: what is above becomes Inf, a mask's -1e9 too, and 0 times that is NaN."""
    import numpy as np

    for name, value in view.constants():
        kind = view.dtype(name)
        if kind not in {"FLOAT", "FLOAT16", "BFLOAT16"}:
            continue
        values = value if value.dtype.kind == "f" else value.astype(np.float32)
        user = next((node.name for node in view.graph.consumers(name)), "")
        if np.isnan(values).any():
            words = f"takes {name!r}, which holds NaN"
            yield Finding("constant-nan", "error", user, words, "export the model again; its weights are broken")
        elif kind == "FLOAT16" and values.size == 1 and (values == -np.inf).all() and _is_mask(view, name):
            words = f"masks with {name!r}, -Inf: where everything is masked, the answer is NaN"
            yield Finding("half-infinite-mask", "warning", user, words, "clip it at -65504")
        elif kind == "FLOAT16" and np.isinf(values).any():
            words = f"takes {name!r}, which FP16 cannot hold: {int(np.isinf(values).sum())} of {values.size} are Inf"
            yield Finding("half-overflow", "error", user, words, "clip it at 65504 or keep the node FP32")
        elif kind == "FLOAT16":
            yield from _subnormal(name, values, user)


def _is_mask(view: View, name: str) -> bool:
    """Whether a constant is nothing but a choice of Where: many source models write -Inf there themselves."""
    return all(node.op_type == "Where" for node in view.graph.consumers(name))


def _subnormal(name: str, values: NDArray[np.generic], user: str) -> Iterator[Finding]:
    import numpy as np

    sizes = np.abs(values[values != 0].astype(np.float32))
    share = float((sizes < _HALF_TINY).mean()) if sizes.size else 0.0
    if values.size > 1 and share > _SUBNORMAL_SHARE:
        words = f"takes {name!r}, {share:.0%} of which are below FP16's normal numbers and lose digits or vanish"
        yield Finding("half-underflow", "error", user, words, "keep the node FP32")


def casts(view: View) -> Iterator[Finding]:
    """A constant that a Cast brings to FP16 has to fit too."""
    import numpy as np

    for node in view.every("Cast"):
        value = view.constant(node.input[0])
        if value is None or view.dtype(node.output[0]) != "FLOAT16" or value.dtype.kind != "f":
            continue
        if (np.abs(value) > _HALF_MAX).any():
            words = f"brings {node.input[0]!r} to FP16, which cannot hold {float(value.ravel()[0]):g}"
            yield Finding("half-overflow", "error", node.name, words, "clip it at 65504 or keep the node FP32")


def epsilons(view: View) -> Iterator[Finding]:
    """What keeps a root, quotient or logarithm away from zero must not be zero itself: 1e-12 is, in FP16."""
    for node in view.every("Add", "Max", "Clip"):
        for name in node.input[:2]:
            value = view.constant(name) if name and view.dtype(name) == "FLOAT16" else None
            if value is None or value.size != 1 or value.any():
                continue
            guarded = next((n for n in view.graph.consumers(node.output[0]) if _guards(node, n)), None)
            if guarded is not None:
                words = f"keeps {guarded.name} from zero with {name!r}, which is 0 in FP16"
                yield Finding("vanished-epsilon", "error", node.name, words, "keep both nodes FP32")


def _guards(node: onnx.NodeProto, user: onnx.NodeProto) -> bool:
    if user.op_type not in _NOT_AT_ZERO:
        return False
    return user.op_type != "Div" or operand(user, 1) == node.output[0]


def norms(view: View) -> Iterator[Finding]:
    """A norm that is written out squares in FP16, which ends at 65504 ("Detected layernorm nodes in FP16")."""
    found = [node for node in view.every("ReduceMean") if view.tensorrt and _is_norm_in_half(view, node)]
    if found:
        others = f", like {len(found) - 1} others" if len(found) > 1 else ""
        words = f"averages squares in FP16{others}, which are infinite for values from 256 on"
        remedy = "keep it FP32, or export it as LayerNormalization or RMSNormalization"
        yield Finding("half-norm", "warning", found[0].name, words, remedy)


def _is_norm_in_half(view: View, mean: onnx.NodeProto) -> bool:
    """Whether a root is taken of the mean of squares and an epsilon."""
    square = view.graph.producer(mean.input[0])
    if square is None or view.dtype(mean.input[0]) != "FLOAT16":
        return False
    exponent = view.constant(square.input[1]) if square.op_type == "Pow" else None
    is_square = (square.op_type == "Mul" and square.input[0] == square.input[1]) or (
        exponent is not None and bool((exponent == 2).all())
    )
    sums = [node for node in view.graph.consumers(mean.output[0]) if node.op_type == "Add"]
    return is_square and any(user.op_type == "Sqrt" for add in sums for user in view.graph.consumers(add.output[0]))


def _schema(node: onnx.NodeProto, view: View) -> onnx.defs.OpSchema | None:
    import onnx

    domain = "" if node.domain == "ai.onnx" else node.domain
    if domain or not onnx.defs.has(node.op_type, domain):
        return None
    try:
        return onnx.defs.get_schema(node.op_type, view.opset, domain)
    except onnx.defs.SchemaError:
        return None


RULES = (mixed_types, order, inference, interface, constants, casts, epsilons, norms)
