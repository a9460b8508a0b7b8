"""Rules on operators that TensorRT's ONNX parser reads in part: attributes, ranks, inputs that have to be constant.

From its table (docs/operators.md of onnx-tensorrt, TensorRT 10.15), and where the table is short or behind, from what
it does (onnxOpCheckers.cpp, onnxOpImporters.cpp and importerUtils.cpp of the same version). The table has no cubic
Resize; the parser reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plansmith.compilers.precision.lint.parser_table import MOST_DIMS, Version, before
from plansmith.compilers.precision.lint.view import Finding, View, attribute, operand

if TYPE_CHECKING:
    import onnx

    Beyond = Callable[[View, onnx.NodeProto], bool]

_LARGEST_K = 3840
_REFUSED = "which TensorRT's parser does not read"


@dataclass(frozen=True)
class _Limit:
    """Of some operators: whether a node is beyond what is read, and how to say so.

    Attributes:
        op_types: the operators.
        is_beyond: whether a node is.
        words: what such a node does.
        until: the first version that reads it.
        outcome: what the parser does with it.
    """

    op_types: Sequence[str]
    is_beyond: Beyond
    words: str
    until: Version | None = None
    outcome: str = _REFUSED

    @property
    def is_of_every_parser(self) -> bool:
        """Whether the parser of every version says so itself."""
        return self.until is None and self.outcome == _REFUSED


def _text(node: onnx.NodeProto, name: str, default: str) -> str:
    value = attribute(node, name)
    return default if value is None else value.decode()


def _is_not(name: str, *allowed: object) -> Beyond:
    """An attribute that is given and none of some values."""

    def check(_: View, node: onnx.NodeProto) -> bool:
        value = attribute(node, name)
        return value is not None and (value.decode() if isinstance(value, bytes) else value) not in allowed

    return check


def _has(*names: str) -> Beyond:
    """Attributes of which one is given."""
    return lambda _, node: any(held.name in names for held in node.attribute)


def _computes(*places: int) -> Beyond:
    """Inputs of which one is given and no constant."""
    return lambda view, node: any(operand(node, p) and not view.is_constant(operand(node, p)) for p in places)


def _varies(place: int) -> Beyond:
    """An input that is given and hangs on the graph's inputs."""
    return lambda view, node: bool(operand(node, place)) and not view.is_fixed(operand(node, place))


def _gives(*places: int) -> Beyond:
    """Outputs of which somebody asks for one."""
    return lambda _, node: any(place < len(node.output) and bool(node.output[place]) for place in places)


def _ranks(place: int, *allowed: int) -> Beyond:
    """An input whose rank is known, and none of some."""

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
    """Of a bidirectional RNN; its lists hold what is for the way there before what is for the way back."""
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
    """By constant factors, more of the last axes than are interpolated over: 3 linear, 2 cubic."""
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


_COORDINATES = ("align_corners", "asymmetric", "half_pixel", "pytorch_half_pixel", "tf_half_pixel_for_nn")
_REDUCTIONS = tuple(
    f"Reduce{k}" for k in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
)
_POOLS = ("AveragePool", "LpPool", "MaxPool")
_RECURRENT = ("GRU", "LSTM", "RNN")
_RANDOM = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
_IGNORED = "which TensorRT's parser ignores without a word: the plan would compute other numbers"
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
    """Operators that every parser reads in part, also in branches and loops."""
    return _beyond(view, (limit for limit in _LIMITS if limit.is_of_every_parser))


def other_limits(view: View) -> Iterator[Finding]:
    """Operators that earlier parsers read in part, or that are read otherwise than ONNX means them."""
    return _beyond(view, (limit for limit in _LIMITS if not limit.is_of_every_parser))


def _beyond(view: View, limits: Iterable[_Limit]) -> Iterator[Finding]:
    for limit in limits if view.tensorrt else ():
        if limit.until is not None and view.parser >= limit.until:
            continue
        for node in view.inside(*limit.op_types):
            if limit.is_beyond(view, node):
                words = f"{limit.words}, {limit.outcome}{before(limit.until)}"
                yield Finding("operator-limit", "error", node.name, words, "set engine: onnxruntime")


def ranks(view: View) -> Iterator[Finding]:
    """TensorRT's tensors have eight axes at most (Dims::MAX_DIMS)."""
    for node in view.inside() if view.tensorrt else ():
        if any(len(view.shape(name) or ()) > MOST_DIMS for name in node.output if name):
            words = f"gives more than {MOST_DIMS} axes"
            yield Finding("many-axes", "error", node.name, words, "reshape with fewer axes in the model's code")


RULES = (limits, other_limits, ranks)
