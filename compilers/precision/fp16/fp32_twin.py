"""A graph in sixteen bits as one in FP32 that rounds where the first does, so that a CPU can judge it.

ONNX Runtime has no CPU kernels for BF16 and few for FP16: around those that it lacks it casts to FP32, and drops the
casts between them, so that it computes FP16 graphs as if they were FP32, without rounding and without overflow. A GPU
does neither. The twin computes in FP32, as the multipliers of GPUs add up, and rounds every result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plansmith.compilers.precision.fp16.format import FLOAT, Format
from plansmith.compilers.precision.fp16.graph import halves
from plansmith.compilers.precision.fp16.operators import MOVES, cast_target

if TYPE_CHECKING:
    from collections.abc import Collection

    import onnx


def twin(lowered: onnx.ModelProto, form: Format) -> onnx.ModelProto:
    """The same numbers in FP32; inputs and outputs are FP32 whatever they are in the lowered graph.

    Args:
        lowered: says of every inner tensor in sixteen bits that it is.
        form: that of its sixteen bits.
    """
    import onnx

    model = onnx.ModelProto()
    model.CopyFrom(lowered)
    graph, rounded = model.graph, set(halves(lowered, form))
    for tensor in graph.initializer:
        if tensor.data_type == form.element:
            tensor.CopyFrom(_widened(tensor))
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == form.element:
            value.type.tensor_type.elem_type = FLOAT
    nodes: list[onnx.NodeProto] = []
    renamed: dict[str, str] = {}
    for value in graph.input:
        if value.name in rounded:
            renamed[value.name] = f"{value.name}_rounded"
            nodes += _round(value.name, renamed[value.name], form)
    for node in lowered.graph.node:
        nodes += _in_fp32(node, rounded, renamed, form)
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    return model


def _in_fp32(
    node: onnx.NodeProto, rounded: Collection[str], renamed: dict[str, str], form: Format
) -> list[onnx.NodeProto]:
    import onnx

    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.input[:] = [renamed.get(name, name) for name in node.input]
    for attribute in copy.attribute:
        if attribute.HasField("t") and attribute.t.data_type == form.element:
            attribute.t.CopyFrom(_widened(attribute.t))
    if node.op_type == "Cast" and cast_target(node) == form.element:
        next(a for a in copy.attribute if a.name == "to").i = FLOAT
    written = [copy]
    if node.op_type not in MOVES | {"Constant"}:  # what is moved is rounded already
        for place, name in enumerate(node.output):
            if name in rounded:
                copy.output[place] = f"{name}_exact"
                written += _round(copy.output[place], name, form)
    return written


def _round(source: str, target: str, form: Format) -> list[onnx.NodeProto]:
    import onnx

    short = f"{target}_short"
    return [
        onnx.helper.make_node("Cast", [source], [short], name=f"{target}_round", to=form.element),
        onnx.helper.make_node("Cast", [short], [target], name=f"{target}_widen", to=FLOAT),
    ]


def _widened(tensor: onnx.TensorProto) -> onnx.TensorProto:
    import numpy as np
    import onnx

    return onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(np.float32), tensor.name)
