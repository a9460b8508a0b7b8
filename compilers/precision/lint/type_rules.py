"""Type rules: operand types, promised interface types, and values outside the range of a 16-bit format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from plansmith.compilers.precision.graph import attribute
from plansmith.compilers.precision.lint.view import (
    DEQUANTIZE,
    QUANTIZE,
    RTX_API,
    TYPES,
    Finding,
    Version,
    View,
    before,
    operand,
)

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from numpy.typing import NDArray


_HALF_MAX = 65504.0
_HALF_TINY = 2.0**-14
# Of ordinary weights (deviation 0.02) one in 400 is subnormal in FP16; of a tensor with a quarter, much is lost.
_SUBNORMAL_SHARE = 0.25
_NOT_AT_ZERO = ("Div", "Log", "Pow", "Reciprocal", "Sqrt")

_ONNX_NAMES = {"FLOAT": "float", "DOUBLE": "double"}
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


def mixed_types(view: View) -> Iterator[Finding]:
    """Report operands of mixed types: ONNX requires one type per variable, and strongly typed networks do not convert.

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
                message = f"takes {kind} ({name}), which {node.op_type} does not know"
                yield Finding("operator-type", "error", node.name, message, "insert a Cast, or keep the node high")
        for kinds in variables.values():
            if len(kinds) > 1:
                message = f"mixes {' and '.join(f'{kind} ({name})' for kind, name in kinds.items())}"
                yield Finding("mixed-types", "error", node.name, message, "insert a Cast before one of them")


def order(view: View) -> Iterator[Finding]:
    """Report nodes before their producers: ONNX's checker and TensorRT's older parsers require topological order."""
    available = {*view.graph.inputs, *(t.name for t in view.model.graph.initializer), ""}
    for node in view.nodes:
        makers = [view.graph.producer(name) for name in node.input if name not in available]
        late = next((maker for maker in makers if maker is not None), None)
        if late is not None:
            message = f"stands before {late.name}, which makes one of its inputs"
            yield Finding("unsorted", "error", node.name, message, "sort the nodes by what they read")
            return
        available.update(node.output)


def inference(view: View) -> Iterator[Finding]:
    """Report every error of ONNX's strict type and shape inference over the whole graph."""
    import onnx

    from plansmith.errors import first_line

    try:
        onnx.shape_inference.infer_shapes(view.graph.model, check_type=True, strict_mode=True, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError) as error:
        message = f"types and shapes do not fit together: {first_line(error)}"
        yield Finding("inference", "error", "", message, "please report this with the model's name")


def interface(view: View) -> Iterator[Finding]:
    """Report inputs and outputs that differ from the graph's own declarations or from the interface for clients."""
    import onnx

    remedy = "insert a Cast, or set lowering.lower_io where clients are to see the lower type"
    for value in view.model.graph.output:
        declared = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)
        actual = view.dtype(value.name)
        if actual and declared != actual:
            message = f"output {value.name!r} is declared as {declared}, the graph computes {actual}"
            yield Finding("interface", "error", "", message, remedy)
    if view.promised is None:
        return
    for promised, values in (
        (view.promised.inputs, view.model.graph.input),
        (view.promised.outputs, view.model.graph.output),
    ):
        original_types = {
            v.name: onnx.helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type).name for v in values
        }
        for tensor in promised:
            if original_types.get(tensor.name) != tensor.dtype:
                message = f"{tensor.name!r} was {tensor.dtype} and is {original_types.get(tensor.name, 'gone')}"
                yield Finding("interface", "error", "", message, remedy)


def constants(view: View) -> Iterator[Finding]:
    """Report constants beyond FP16's 65504, such as a mask's -1e9: they become Inf, and 0 times that is NaN."""
    import numpy as np

    for name, value in view.constants():
        kind = view.dtype(name)
        if kind not in {"FLOAT", "FLOAT16", "BFLOAT16"}:
            continue
        values = value if value.dtype.kind == "f" else value.astype(np.float32)
        user = next((node.name for node in view.graph.consumers(name)), "")
        if np.isnan(values).any():
            message = f"takes {name!r}, which holds NaN"
            yield Finding("constant-nan", "error", user, message, "export the model again; its weights are broken")
        elif kind == "FLOAT16" and values.size == 1 and (values == -np.inf).all() and _is_mask(view, name):
            message = f"masks with {name!r}, -Inf: where everything is masked, the answer is NaN"
            yield Finding("half-infinite-mask", "warning", user, message, "clip it at -65504")
        elif kind == "FLOAT16" and np.isinf(values).any():
            message = f"takes {name!r}, which FP16 cannot hold: {int(np.isinf(values).sum())} of {values.size} are Inf"
            yield Finding("half-overflow", "error", user, message, "clip it at 65504 or keep the node FP32")
        elif kind == "FLOAT16":
            yield from _subnormal(name, values, user)


def _is_mask(view: View, name: str) -> bool:
    """Whether a constant is used only as a choice of Where: many source models write -Inf there themselves."""
    return all(node.op_type == "Where" for node in view.graph.consumers(name))


def _subnormal(name: str, values: NDArray[np.generic], user: str) -> Iterator[Finding]:
    import numpy as np

    sizes = np.abs(values[values != 0].astype(np.float32))
    share = float((sizes < _HALF_TINY).mean()) if sizes.size else 0.0
    if values.size > 1 and share > _SUBNORMAL_SHARE:
        message = f"takes {name!r}, {share:.0%} of which are below FP16's normal numbers and lose digits or vanish"
        yield Finding("half-underflow", "error", user, message, "keep the node FP32")


def casts(view: View) -> Iterator[Finding]:
    """Report constants that a Cast brings to FP16 beyond its range."""
    import numpy as np

    for node in view.every("Cast"):
        value = view.constant(node.input[0])
        if value is None or view.dtype(node.output[0]) != "FLOAT16" or value.dtype.kind != "f":
            continue
        if (np.abs(value) > _HALF_MAX).any():
            message = f"brings {node.input[0]!r} to FP16, which cannot hold {float(value.ravel()[0]):g}"
            yield Finding("half-overflow", "error", node.name, message, "clip it at 65504 or keep the node FP32")


def epsilons(view: View) -> Iterator[Finding]:
    """Report epsilons that become zero: those of a root, quotient or logarithm must not, but 1e-12 does in FP16."""
    for node in view.every("Add", "Max", "Clip"):
        for name in node.input[:2]:
            value = view.constant(name) if name and view.dtype(name) == "FLOAT16" else None
            if value is None or value.size != 1 or value.any():
                continue
            guarded = next((n for n in view.graph.consumers(node.output[0]) if _guards(node, n)), None)
            if guarded is not None:
                message = f"keeps {guarded.name} from zero with {name!r}, which is 0 in FP16"
                yield Finding("vanished-epsilon", "error", node.name, message, "keep both nodes FP32")


def _guards(node: onnx.NodeProto, user: onnx.NodeProto) -> bool:
    if user.op_type not in _NOT_AT_ZERO:
        return False
    return user.op_type != "Div" or operand(user, 1) == node.output[0]


def norms(view: View) -> Iterator[Finding]:
    """Report decomposed norms that square in FP16, which ends at 65504 ("Detected layernorm nodes in FP16")."""
    norm_nodes = [node for node in view.every("ReduceMean") if view.tensorrt and _is_norm_in_half(view, node)]
    if norm_nodes:
        others = f", like {len(norm_nodes) - 1} others" if len(norm_nodes) > 1 else ""
        message = f"averages squares in FP16{others}, which are infinite for values from 256 on"
        remedy = "keep it FP32, or export it as LayerNormalization or RMSNormalization"
        yield Finding("half-norm", "warning", norm_nodes[0].name, message, remedy)


def _is_norm_in_half(view: View, mean: onnx.NodeProto) -> bool:
    """Whether a root is taken of the mean of squares and an epsilon in FP16."""
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


def strings(view: View) -> Iterator[Finding]:
    """Report string tensors, which TensorRT does not have."""
    if view.tensorrt:
        for value in view.model.graph.input:
            if view.dtype(value.name) == "STRING":
                message = f"input {value.name!r} is text"
                yield Finding("strings", "error", "", message, "tokenize before the model, or set engine: onnxruntime")


def kinds(view: View) -> Iterator[Finding]:
    """Report types that TensorRT lacks: 16-bit and unsigned integers, complex numbers, some 8-bit types."""
    if not view.tensorrt:
        return
    for value in view.model.graph.input:
        kind = view.dtype(value.name)
        if kind and kind not in TYPES and kind != "STRING":
            yield Finding("tensor-type", "error", "", f"input {value.name!r} is {kind}, which TensorRT has not", _ORT)
    for node in view.inside():
        unsupported = sorted({view.dtype(n) for n in (*node.input, *node.output) if n} - TYPES - {""})
        if unsupported and not (
            node.op_type == DEQUANTIZE and view.dtype(node.input[0]) in unsupported
        ):  # has a rule of its own
            message = f"works on {' and '.join(unsupported)}, which TensorRT has not"
            yield Finding(
                "tensor-type", "error", node.name, message, "cast to INT32, INT64 or FP32 in the model's code"
            )


def bytes_inside(view: View) -> Iterator[Finding]:
    """Report UINT8 except for inputs that are cast at once, and outputs.

    NVIDIA documents casts with FP32 and FP16 only.
    """
    if not view.tensorrt:
        return
    inputs, outputs = view.graph.inputs, view.graph.outputs
    for node in view.inside():
        if node.op_type in {QUANTIZE, DEQUANTIZE}:
            continue
        byte_inputs = [name for name in node.input if name and view.dtype(name) == "UINT8"]
        byte_outputs = [name for name in node.output if name and view.dtype(name) == "UINT8"]
        if not byte_inputs and not byte_outputs:
            continue
        is_entry = node.op_type == "Cast" and not byte_outputs and all(name in inputs for name in byte_inputs)
        is_exit = node.op_type == "Cast" and not byte_inputs and all(name in outputs for name in byte_outputs)
        partner_type = view.dtype(node.output[0] if byte_inputs else node.input[0])
        if not is_entry and not is_exit:
            message = (
                f"works on UINT8 ({(byte_inputs or byte_outputs)[0]!r}), which"
                " TensorRT has only at its inputs and outputs"
            )
            yield Finding("uint8-inside", "error", node.name, message, "cast to FP32 or FP16 right behind the input")
        elif partner_type not in {"FLOAT", "FLOAT16"}:
            message = f"casts between UINT8 and {partner_type}, which TensorRT's documentation does not allow"
            yield Finding("uint8-inside", "warning", node.name, message, "cast by way of FP32 or FP16")


def doubles(view: View) -> Iterator[Finding]:
    """Report FP64, which the parser converts to FP32.

    Inside it loses digits, at the interface clients' type is refused.
    """
    if not view.tensorrt:
        return
    for value in (*view.model.graph.input, *view.model.graph.output):
        if view.dtype(value.name) == "DOUBLE":
            message = f"{value.name!r} is FP64, and FP32 in a plan"
            yield Finding("double-interface", "error", "", message, "cast inside of the model, to and from FP32")
    first = next((n for n in view.inside() if any(view.dtype(name) == "DOUBLE" for name in n.output if name)), None)
    if first is not None:
        message = "computes in FP64, and in FP32 in a plan"
        yield Finding("double-precision", "warning", first.name, message, "see that the accuracy gate agrees")


def low_casts(view: View) -> Iterator[Finding]:
    """Report casts to types of 8 bits or fewer: only QuantizeLinear converts to these, ICastLayer refuses them."""
    for node in view.inside("Cast", "CastLike") if view.tensorrt else ():
        low_types = [view.dtype(name) for name in (node.input[0], node.output[0]) if view.dtype(name) in _LOW_BITS]
        if low_types:
            message = f"casts {low_types[0]}"
            yield Finding("low-cast", "error", node.name, message, "use QuantizeLinear and DequantizeLinear")


def refused_types(view: View) -> Iterator[Finding]:
    """Report types that ONNX allows for an operator but TensorRT's importer of it does not."""
    for op_types, places, refused, until in _REFUSED if view.tensorrt else ():
        if until is not None and view.parser >= until:
            continue
        for node in view.inside(*op_types):
            types = [view.dtype(operand(node, place)) for place in places if operand(node, place)]
            wrong = next((kind for kind in types if kind in refused), None)
            if wrong is not None:
                message = f"is {node.op_type} of {wrong}, which TensorRT's parser refuses{before(until)}"
                yield Finding("refused-type", "error", node.name, message, "cast to FP32 before it in the model's code")


def parser_constants(view: View) -> Iterator[Finding]:
    """Report FP16 operators for which the parser adds FP32 constants, as strongly typed layers refuse mixed types.

    Of the factor 1/n of Mean, it keeps the last two bytes of four: 0 for two inputs, -0.05 for three, -19.2 for five.
    """
    for node in view.inside(*_IN_FP32) if view.tensorrt else ():
        kind = view.dtype(node.input[0])
        concerns, until = _IN_FP32[node.op_type]
        if kind in _HALVES and concerns(node) and (until is None or view.parser < until):
            message = f"is {node.op_type} of {kind}, to which TensorRT's parser adds FP32 constants{before(until)}"
            yield Finding("parser-constants", "error", node.name, message, "keep the node FP32")
    for node in view.inside("Mean") if view.tensorrt else ():
        kind = view.dtype(node.input[0])
        if kind in _HALVES:
            message = (
                f"is Mean of {kind}, which a plan answers with wrong numbers, zeros for two inputs, without a word"
            )
            yield Finding("parser-constants", "error", node.name, message, "keep the node FP32")


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

TENSOR_RULES = (strings, kinds, bytes_inside, doubles, low_casts, refused_types, parser_constants)
