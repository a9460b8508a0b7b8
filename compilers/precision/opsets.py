"""Opset conversion: upgrades old graphs once to an opset with low-precision operators, before lowering."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from plansmith.compilers.precision.calibration import difference, small_feeds
from plansmith.compilers.precision.graph import Graph
from plansmith.errors import ExportError, first_line

if TYPE_CHECKING:
    import onnx

    from plansmith.records.arrays import Arrays


OLDEST = 13
"""The first opset whose QuantizeLinear has a scale per channel, and whose comparisons take all floating-point types."""

WANTED = 17
"""What an older graph is brought to at least: LayerNormalization is one operator from here on, all targets read it."""

_SAME = 1e-4
_ROWS = 2
_LARGE_BYTES = 1 << 20
_IR_WITHOUT_DEFAULTS = 4


def modern(model: onnx.ModelProto, feed: Arrays, oldest: int = OLDEST) -> onnx.ModelProto:
    """Convert a graph to a newer opset with the same results and names; a recent enough one is returned as it is.

    The converter knows most operators, but not all of them well: where it makes an Upsample that interpolates a Resize,
    for one, the numbers differ. So the two graphs' answers are compared.

    Args:
        model: with its weights in memory; changed in place where it is new enough, and empty of its largest weights
            for as long as an old one is being converted.
        feed: inputs to compare answers on.
        oldest: the first opset that will do; an older graph is brought to it, or to `WANTED` if that is newer.

    Raises:
        ExportError: ONNX cannot convert the graph.
    """
    forget_defaults(model)
    version = _opset(model)
    if version >= oldest:
        return model
    target = max(oldest, WANTED)
    problem = f"the graph is of opset {version}, which is below the {oldest} that lowering starts from, and"
    remedy = f"export it with opset {target} or newer"
    converted = _converted(model, target, problem, remedy)
    few = next(small_feeds(model, [feed], _ROWS))
    try:
        apart = difference(model, converted, [few])
    except Exception as error:
        raise ExportError(
            f"{problem} ONNX Runtime refuses what ONNX converts it to: {first_line(error)}", remedy=remedy
        ) from error
    if apart > _SAME:
        raise ExportError(f"{problem} ONNX converts it to one whose answers differ by {apart:.1g}", remedy=remedy)
    return converted


def _converted(model: onnx.ModelProto, target: int, problem: str, remedy: str) -> onnx.ModelProto:
    import onnx

    large = _without_large(model)
    try:
        converted = onnx.version_converter.convert_version(model, target)
    except (onnx.version_converter.ConvertError, RuntimeError) as error:
        raise ExportError(f"{problem} ONNX cannot convert it: {_converter_message(error)}", remedy=remedy) from error
    finally:
        _restore(model, large)
    _restore(converted, large)
    needed = onnx.helper.find_min_ir_version_for(converted.opset_import, ignore_unknown=True)
    converted.ir_version = max(model.ir_version, needed)
    _store_constants(converted)
    return converted


def forget_defaults(model: onnx.ModelProto) -> None:
    """Remove initializers from the inputs, where the oldest files list them, as they are never fed."""
    inputs = model.graph.input
    stored = {tensor.name for tensor in model.graph.initializer}
    for place in reversed(range(len(inputs))):
        if inputs[place].name in stored:
            del inputs[place]
    model.ir_version = max(model.ir_version, _IR_WITHOUT_DEFAULTS)


def _without_large(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Replace the large weights with inputs.

    The converter serializes the whole graph as one message, limited to 2 GiB.
    """
    import onnx

    large, stored = [], model.graph.initializer
    for place in reversed(range(len(stored))):
        if stored[place].ByteSize() > _LARGE_BYTES:
            tensor = onnx.TensorProto()
            tensor.CopyFrom(stored[place])
            large.append(tensor)
            model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
            del stored[place]
    return large


def _restore(model: onnx.ModelProto, large: list[onnx.TensorProto]) -> None:
    model.graph.initializer.extend(large)
    forget_defaults(model)


def _store_constants(model: onnx.ModelProto) -> None:
    """Convert Constant nodes, of which the converter writes many, to initializers."""
    graph = Graph(model)
    constants = [node for node in model.graph.node if node.op_type == "Constant"]
    for node in constants:
        value = next((a.t for a in node.attribute if a.name == "value"), None)
        if value is not None and node.output[0] not in graph.outputs:
            tensor = model.graph.initializer.add()
            tensor.CopyFrom(value)
            tensor.name = node.output[0]
            model.graph.node.remove(node)


def _opset(model: onnx.ModelProto) -> int:
    return next(o.version for o in model.opset_import if o.domain in {"", "ai.onnx"})


def _converter_message(error: Exception) -> str:
    """The converter's error message, without its source location."""
    return first_line(Exception(re.sub(r"^\S+:\d+: \w+: (Assertion .* failed: )?", "", str(error))))
