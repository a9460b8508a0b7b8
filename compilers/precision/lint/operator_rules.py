"""Operator rules: operators that TensorRT's ONNX parser does not support, or only in part; branches and loops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plansmith.compilers.precision.graph import attribute, subgraphs
from plansmith.compilers.precision.lint.view import (
    COMMON,
    MOST_DIMS,
    OLDEST_OPSET,
    Finding,
    Version,
    View,
    before,
    is_by_plugin,
    is_library_plugin,
    is_own,
    newest_opset,
    operand,
    since,
)

if TYPE_CHECKING:
    import onnx

    Beyond = Callable[[View, onnx.NodeProto], bool]


_LARGEST_K = 3840
_REFUSED = "which TensorRT's parser does not read"

_COORDINATES = ("align_corners", "asymmetric", "half_pixel", "pytorch_half_pixel", "tf_half_pixel_for_nn")
_REDUCTIONS = tuple(
    f"Reduce{k}" for k in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
)
_POOLS = ("AveragePool", "LpPool", "MaxPool")
_RECURRENT = ("GRU", "LSTM", "RNN")
_RANDOM = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
_IGNORED = "which TensorRT's parser ignores without a word: the plan would compute other numbers"
_STANDARD = ("", "ai.onnx")
_INTEGER = (
    "ConvInteger",
    "DynamicQuantizeLinear",
    "MatMulInteger",
    "QLinearConv",
    "QLinearMatMul",
)
# A trip count from here on stands for "until the condition says so".
_ENDLESS = 2**31 - 1
_CARRIED_FROM = 2


@dataclass(frozen=True)
class _Limit:
    """A parser limit of some operators: whether a node exceeds it, and the message for that.

    Attributes:
        op_types: the operators.
        is_beyond: whether a node is.
        description: what such a node does.
        until: the first version that reads it.
        outcome: what the parser does with it.
    """

    op_types: Sequence[str]
    is_beyond: Beyond
    description: str
    until: Version | None = None
    outcome: str = _REFUSED

    @property
    def is_of_every_parser(self) -> bool:
        """Whether the parser of every version reports the limit itself."""
        return self.until is None and self.outcome == _REFUSED


def _text(node: onnx.NodeProto, name: str, default: str) -> str:
    value = attribute(node, name)
    return default if value is None else value.decode()


def _is_not(name: str, *allowed: object) -> Beyond:
    """Match an attribute that is set and has none of the allowed values."""

    def check(_: View, node: onnx.NodeProto) -> bool:
        value = attribute(node, name)
        return value is not None and (value.decode() if isinstance(value, bytes) else value) not in allowed

    return check


def _has(*names: str) -> Beyond:
    """Match nodes that set any of these attributes."""
    return lambda _, node: any(entry.name in names for entry in node.attribute)


def _computes(*places: int) -> Beyond:
    """Match nodes where any of these inputs is given and is not constant."""
    return lambda view, node: any(operand(node, p) and not view.is_constant(operand(node, p)) for p in places)


def _varies(place: int) -> Beyond:
    """Match an input that is given and depends on the graph's inputs."""
    return lambda view, node: bool(operand(node, place)) and not view.is_fixed(operand(node, place))


def _gives(*places: int) -> Beyond:
    """Match nodes where any of these outputs is used."""
    return lambda _, node: any(place < len(node.output) and bool(node.output[place]) for place in places)


def _ranks(place: int, *allowed: int) -> Beyond:
    """Match an input whose rank is known and not among the allowed ones."""

    def check(view: View, node: onnx.NodeProto) -> bool:
        shape = view.shape(operand(node, place)) if operand(node, place) else None
        return shape is not None and len(shape) not in allowed

    return check


def _is_dilated(_: View, node: onnx.NodeProto) -> bool:
    return any(d != 1 for d in attribute(node, "dilations", ()))


def _takes_many(view: View, node: onnx.NodeProto) -> bool:
    k = view.constant(operand(node, 1))
    return k is not None and int(k.ravel()[0]) > _LARGEST_K


def _has_cache(_: View, node: onnx.NodeProto) -> bool:
    return any(operand(node, place) for place in (4, 5, 6)) or len(node.output) > 1 or bool(attribute(node, "softcap"))


def _trains(view: View, node: onnx.NodeProto) -> bool:
    name = operand(node, 2)
    value = view.constant(name) if name else None
    return bool(name) and (value is None or bool(value.any()))


def _directions_differ(_: View, node: onnx.NodeProto) -> bool:
    """Match a bidirectional RNN whose directions differ; its lists hold the forward values before the backward ones."""
    if _text(node, "direction", "forward") != "bidirectional":
        return False
    lists = [list(attribute(node, name, ())) for name in ("activations", "activation_alpha", "activation_beta")]
    return any(values[: len(values) // 2] != values[len(values) // 2 :] for values in lists)


def _is_no_plain_square(view: View, node: onnx.NodeProto) -> bool:
    shape = view.shape(node.input[0])
    return shape is None or len(shape) != 2 or None in shape


def _squeezes_what_varies(view: View, node: onnx.NodeProto) -> bool:
    if operand(node, 1) or attribute(node, "axes"):
        return False
    shape = view.shape(node.input[0])
    return shape is None or None in shape


def _resizes_inner_axes(view: View, node: onnx.NodeProto) -> bool:
    """Match a Resize by constant factors of axes before the last ones that can be interpolated: 3 linear, 2 cubic."""
    most = {"linear": 3, "cubic": 2}.get(_text(node, "mode", "nearest"))
    scales = view.constant(operand(node, 2)) if operand(node, 2) else None
    if most is None or scales is None or attribute(node, "axes"):
        return False
    return any(float(scale) != 1 for scale in scales.ravel()[:-most])


def _is_complex(view: View, node: onnx.NodeProto) -> bool:
    shape = view.shape(node.input[0])
    return shape is not None and len(shape) == 3 and shape[2] != 1


def _pads_askew(_: View, node: onnx.NodeProto) -> bool:
    pads = list(attribute(node, "pads", ()))
    return pads[: len(pads) // 2] != pads[len(pads) // 2 :]


def _has_capitals(_: View, node: onnx.NodeProto) -> bool:
    return any(letter not in "abcdefghijklmnopqrstuvwxyz->., " for letter in _text(node, "equation", ""))


def _takes_the_largest_of_what_varies(view: View, node: onnx.NodeProto) -> bool:
    shape = view.shape(node.input[0])
    return shape is not None and bool(shape) and shape[attribute(node, "axis", -1)] is None


_LIMITS = (
    _Limit(_POOLS, _is_dilated, "pools with dilations"),
    _Limit(("AveragePool", "MaxPool"), _ranks(0, 3, 4, 5), "pools over other than one, two or three axes"),
    _Limit(("LpPool",), _ranks(0, 4, 5), "pools by a norm over other than two or three axes"),
    _Limit(("ArgMax", "ArgMin"), _ranks(0, *range(2, MOST_DIMS + 1)), "looks for the place in a single axis"),
    _Limit(("Conv", "ConvTranspose"), _ranks(0, 3, 4, 5), "convolves over other than one, two or three axes"),
    _Limit(("MaxPool",), _gives(1), "gives the places of the maxima"),
    _Limit(("BatchNormalization",), _gives(1, 2, 3, 4), "gives statistics too"),
    _Limit(("BatchNormalization",), _is_not("training_mode", 0), "normalises by the batch, as in training"),
    _Limit(("LayerNormalization",), _gives(1, 2), "gives the mean or the deviation too"),
    _Limit(("GroupNormalization", "InstanceNormalization"), _ranks(0, *range(3, 9)), "has fewer than three axes"),
    _Limit(("LpNormalization", "LpPool"), _is_not("p", 1, 2), "takes another norm than L1 and L2"),
    _Limit(("TopK",), _takes_many, f"wants more than {_LARGEST_K} values"),
    _Limit(("ScatterND",), _is_not("reduction", "none"), "scatters with a reduction"),
    _Limit(("Resize",), _is_not("coordinate_transformation_mode", *_COORDINATES), "has a coordinate mode of its own"),
    _Limit(("Resize",), _is_not("antialias", 0), "smooths while it shrinks"),
    _Limit(("Resize",), _is_not("keep_aspect_ratio_policy", "stretch"), "keeps the aspect ratio"),
    _Limit(("Resize",), _resizes_inner_axes, "interpolates over more axes than three (linear) or two (cubic)"),
    _Limit(_REDUCTIONS, _computes(1), "reduces over axes that are computed"),
    _Limit(("CumSum", "OneHot"), _varies(1), "takes an axis or depth that is computed"),
    _Limit(_RECURRENT, _is_not("input_forget", 0), "couples the input and forget gates"),
    _Limit(_RECURRENT, _is_not("layout", 0), "takes the batch first", outcome=_IGNORED),
    _Limit(_RECURRENT, _directions_differ, "has other activations on the way back"),
    _Limit(("Attention",), _has_cache, "attends over cached keys, or caps its scores"),
    _Limit(("Attention",), _has("softmax_precision"), "gives its softmax a precision of its own"),
    _Limit(("Attention",), _ranks(0, 4), "attends without an axis of heads (3-D)", until=(10, 15)),
    _Limit(("Dropout",), _trains, "drops out at inference"),
    _Limit(("EyeLike",), _is_no_plain_square, "makes an identity of a size that varies"),
    _Limit(("Hardmax",), _takes_the_largest_of_what_varies, "takes the largest along an axis that varies"),
    _Limit(("Squeeze",), _squeezes_what_varies, "names no axes, of a shape that varies", until=(11, 5)),
    _Limit(("GridSample",), _ranks(0, 4), "samples other than 4-D images", until=(11, 2)),
    _Limit(("DeformConv",), _ranks(0, 3, 4), "convolves over more than two axes"),
    _Limit(("DeformConv",), _pads_askew, "pads one end more than the other"),
    _Limit(("DepthToSpace", "SpaceToDepth"), _ranks(0, 4), "takes other than 4-D images"),
    _Limit(("STFT",), _computes(1, 2, 3), "takes a step, window or length that is computed"),
    _Limit(("STFT",), _is_complex, "transforms complex numbers"),
    _Limit(("Einsum",), _has_capitals, "names axes by other than small letters"),
    _Limit(("Constant",), _has("sparse_value", "value_string", "value_strings"), "holds text or a sparse tensor"),
    _Limit(_RANDOM, _is_not("dtype", 1, 10), "draws other than FP32 or FP16 numbers"),
    _Limit(("TensorScatter",), _ranks(0, 4), "updates other than 4-D caches"),
    _Limit(("TensorScatter",), _is_not("axis", -2, 2), "updates along another axis than the third"),
    _Limit(("TensorScatter",), _is_not("mode", "linear"), "updates around the end"),
)


def limits(view: View) -> Iterator[Finding]:
    """Report operators that every parser supports only in part, also in branches and loops."""
    return _beyond(view, (limit for limit in _LIMITS if limit.is_of_every_parser))


def other_limits(view: View) -> Iterator[Finding]:
    """Report operators that earlier parsers support only in part, or that are read differently from ONNX."""
    return _beyond(view, (limit for limit in _LIMITS if not limit.is_of_every_parser))


def _beyond(view: View, limits: Iterable[_Limit]) -> Iterator[Finding]:
    for limit in limits if view.tensorrt else ():
        if limit.until is not None and view.parser >= limit.until:
            continue
        for node in view.inside(*limit.op_types):
            if limit.is_beyond(view, node):
                message = f"{limit.description}, {limit.outcome}{before(limit.until)}"
                yield Finding("operator-limit", "error", node.name, message, "set engine: onnxruntime")


def ranks(view: View) -> Iterator[Finding]:
    """Report tensors of too high rank: TensorRT's limit is eight dims (Dims::MAX_DIMS)."""
    for node in view.inside() if view.tensorrt else ():
        if any(len(view.shape(name) or ()) > MOST_DIMS for name in node.output if name):
            message = f"gives more than {MOST_DIMS} axes"
            yield Finding("many-axes", "error", node.name, message, "reshape with fewer axes in the model's code")


LIMIT_RULES = (limits, other_limits, ranks)


def operators(view: View) -> Iterator[Finding]:
    """Report operators that the parser lacks, also in branches and loops; for these it looks up plugins by name."""
    if not view.tensorrt:
        return
    local = {(f.domain, f.name) for f in view.model.functions}
    for node in (*_all_nodes(view.nodes), *(n for f in view.model.functions for n in _all_nodes(f.node))):
        if (node.domain, node.op_type) in local or is_own(node.op_type):
            continue
        if node.domain not in _STANDARD:
            yield from _foreign(view, node)
        elif node.op_type in _INTEGER:
            message = f"is {node.op_type}, which TensorRT's parser does not read"
            yield Finding("integer-operator", "error", node.name, message, "use QuantizeLinear and DequantizeLinear")
        else:
            yield from _standard(view, node)


def _foreign(view: View, node: onnx.NodeProto) -> Iterator[Finding]:
    """Check operators of other domains.

    The parser looks up a plugin of that name in the registry (FallbackPluginImporter).
    """
    message = f"is {node.op_type} of {node.domain}"
    if is_library_plugin(node.op_type):
        message += ", which only a TensorRT whose library of plugins has it can build"
        yield Finding("library-plugin", "warning", node.name, message, "see that the target's TensorRT has the plugin")
    elif not view.plugins:
        remedy = "lower without it for TensorRT, or name its library: `tensorrt: {plugins: [...]}`"
        yield Finding("foreign-operator", "error", node.name, f"{message}, which only some runtimes have", remedy)


def _standard(view: View, node: onnx.NodeProto) -> Iterator[Finding]:
    first = since(node.op_type)
    is_read = first is not None and first <= view.parser
    if is_read and is_by_plugin(node.op_type, attribute(node, "reduction", b"none").decode()):
        message = f"is {node.op_type}, which TensorRT builds with a plugin of libnvinfer_plugin"
        remedy = "see that the target has that library, as NVIDIA's images do"
        yield Finding("standard-plugin", "warning", node.name, message, remedy)
    if is_read or view.plugins:
        return
    message, remedy = f"is {node.op_type}, which TensorRT's parser does not read", "set engine: onnxruntime"
    if first is not None:
        message += before(first)
        remedy = f"take a target with TensorRT {first[0]}.{first[1]} or newer, or {remedy}"
    yield Finding("unknown-operator", "error", node.name, message, remedy)


def opset(view: View) -> Iterator[Finding]:
    """Report unsupported opsets; if TensorRT's version is unknown, all known versions but the newest must read them.

    TensorRT's parser looks at no opset, and reads operators as those that it knows are defined.
    """
    if view.tensorrt:
        newest = newest_opset(view.parser if view.parser_is_known else COMMON)
        oldest, newest = OLDEST_OPSET, min(view.max_opset or newest, newest)
        if not oldest <= view.opset <= newest:
            message = f"is of opset {view.opset}; this TensorRT knows the operators of {oldest} to {newest}"
            yield Finding("opset", "warning", "", message, "export with an opset in between")
    elif view.max_opset is not None and not 1 <= view.opset <= view.max_opset:
        message = f"is of opset {view.opset}; {view.engine.value} reads 1 to {view.max_opset}"
        yield Finding("opset", "error", "", message, "export with an opset in between")


def _all_nodes(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from _all_nodes(graph.node)


SUPPORT_RULES = (operators, opset)


def branches(view: View) -> Iterator[Finding]:
    """Report If nodes whose branches differ in output rank; with a constant condition only one branch is read."""
    for node in view.inside("If") if view.tensorrt else ():
        if view.is_constant(node.input[0]):
            continue
        then, else_branch = attribute(node, "then_branch"), attribute(node, "else_branch")
        for first, two in zip(then.output, else_branch.output, strict=False):
            shapes = view.shape(first.name), view.shape(two.name)
            if shapes[0] is not None and shapes[1] is not None and len(shapes[0]) != len(shapes[1]):
                message = (
                    f"gives {first.name!r} with {len(shapes[0])} axes in one branch and {len(shapes[1])} in the other"
                )
                yield Finding("branch-ranks", "error", node.name, message, "give both branches the same number of axes")
        shared = sorted({v.name for v in then.output} & {v.name for v in else_branch.output})
        if shared:
            message = f"names {shared[0]!r} in both branches, where TensorRT's table asks for different names"
            yield Finding("branch-names", "warning", node.name, message, "rename the output in one of them")


def loops(view: View) -> Iterator[Finding]:
    """Report loops whose scan outputs do not match the trip count, or whose loop-carried tensors change shape."""
    for node in view.inside("Loop") if view.tensorrt else ():
        body = attribute(node, "body")
        carried = max(0, len(node.input) - _CARRIED_FROM)
        if not operand(node, 1) and len(body.input) > 1 and _is_read(body, body.input[1].name):
            message = "leaves its condition out, and its body reads it"
            yield Finding("loop-condition", "error", node.name, message, "give the loop a condition that is true")
        if len(body.output) > 1 + carried and _is_endless(view, operand(node, 0)):
            message = "gathers outputs, and nothing but its condition says how many"
            yield Finding("loop-length", "error", node.name, message, "export the loop with a trip count")
        pairs = zip(body.input[_CARRIED_FROM:], body.output[1 : 1 + carried], strict=False)
        for carried_in, carried_out in pairs:
            if _differ(view, carried_in.name, carried_out.name):
                message = f"carries {carried_in.name!r} from round to round with another shape"
                yield Finding("loop-shape", "error", node.name, message, "carry a tensor of one size and fill it")


def scans(view: View) -> Iterator[Finding]:
    """Report Scan nodes without a state: the importer uses the layer of the first state, and fails without one."""
    for node in view.inside("Scan") if view.tensorrt else ():
        if len(node.input) <= attribute(node, "num_scan_inputs", 0):
            message = "carries no state, which TensorRT's parser does not read"
            yield Finding("scan-state", "error", node.name, message, "write it without a loop")


def _is_read(body: onnx.GraphProto, name: str) -> bool:
    return any(name in node.input for node in body.node) or any(output.name == name for output in body.output)


def _is_endless(view: View, count: str) -> bool:
    if not count:
        return True
    value = view.constant(count)
    return value is not None and int(value.ravel()[0]) >= _ENDLESS


def _differ(view: View, before: str, after: str) -> bool:
    """Whether two shapes differ in rank or in a fixed size."""
    first, two = view.shape(before), view.shape(after)
    if first is None or two is None:
        return False
    return len(first) != len(two) or any(a != b for a, b in zip(first, two, strict=True) if None not in {a, b})


CONTROL_FLOW_RULES = (branches, loops, scans)
