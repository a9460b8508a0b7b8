"""Old graphs: brought to an opset that has the operators of lower precision, once, before anything is lowered."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from plansmith.compilers.precision.graph import Graph
from plansmith.errors import ExportError, first_line

if TYPE_CHECKING:
    import onnx

OLDEST = 13
"""The first opset whose QuantizeLinear has a scale per channel, and whose comparisons take all floating-point types."""

WANTED = 17
"""What an older graph is brought to: LayerNormalization is one operator from here on, and every target reads it."""

_LARGE_BYTES = 1 << 20
_IR_WITHOUT_DEFAULTS = 4


def modern(model: onnx.ModelProto) -> onnx.ModelProto:
    """A graph of the same numbers and names in opset 13 or newer; what is new enough is given back as it is.

    Args:
        model: with its weights in memory; changed in place where it is new enough, and empty of its largest weights
            for as long as an old one is being converted.

    Raises:
        ExportError: ONNX cannot convert the graph.
    """
    import onnx

    forget_defaults(model)
    version = _opset(model)
    if version >= OLDEST:
        return model
    large = _without_large(model)
    try:
        converted = onnx.version_converter.convert_version(model, WANTED)
    except (onnx.version_converter.ConvertError, RuntimeError) as error:
        raise ExportError(
            f"the graph is of opset {version}, which lowering cannot start from, and ONNX cannot convert it:"
            f" {_told(error)}",
            remedy="export it with opset 17 or newer",
        ) from error
    finally:
        _restore(model, large)
    _restore(converted, large)
    converted.ir_version = max(
        model.ir_version, _IR_WITHOUT_DEFAULTS, onnx.helper.find_min_ir_version_for(converted.opset_import)
    )
    _store_constants(converted)
    return converted


def forget_defaults(model: onnx.ModelProto) -> None:
    """Take initialisers out of the inputs, where the oldest files list them: nobody feeds them."""
    inputs = model.graph.input
    stored = {tensor.name for tensor in model.graph.initializer}
    for place in reversed(range(len(inputs))):
        if inputs[place].name in stored:
            del inputs[place]
    model.ir_version = max(model.ir_version, _IR_WITHOUT_DEFAULTS)


def _without_large(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Make inputs of the large weights: the converter writes the whole graph as one message, which ends at 2 GiB."""
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
    """Make initialisers of Constant nodes, of which the converter writes many."""
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


def _told(error: Exception) -> str:
    """What the converter says, without the place in its source."""
    return first_line(Exception(re.sub(r"^.*?:\d+: \w+: ", "", str(error))))
