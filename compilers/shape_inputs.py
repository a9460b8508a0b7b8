"""Shape tensor inputs: graph inputs whose values decide shapes, and whose values TensorRT therefore needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.compilers.precision.graph import names_inside, subgraphs
from plansmith.sources.onnx_file import read_skeleton

if TYPE_CHECKING:
    import onnx

# Where the operators of ONNX take sizes, by the place of the input; from the layers that TensorRT's parser makes of
# them (ShapeTensor in onnxOpImporters.cpp of onnx-tensorrt).
_SIZES: dict[str, tuple[int, ...]] = {
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "Loop": (0,),
    "NonMaxSuppression": (2,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}
# What these give is a shape, whatever their input holds.
_ENDS = ("Shape", "Size")
_STANDARD = ("", "ai.onnx")


def shape_inputs(model: onnx.ModelProto) -> tuple[str, ...]:
    """Return TensorRT's shape inputs, in the graph's order: integers of rank 0 or 1 that determine a size.

    Args:
        model: its weights are not needed.
    """
    import onnx

    integers = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
    deciding = inputs_that_decide(model)
    return tuple(
        value.name
        for value in model.graph.input
        if value.name in deciding
        and value.type.tensor_type.elem_type in integers
        and len(value.type.tensor_type.shape.dim) < 2
    )


def read_shape_inputs(path: Path) -> tuple[str, ...]:
    """As `shape_inputs`, for a file, whose weights are not read."""
    return shape_inputs(read_skeleton(path))


def inputs_that_decide(model: onnx.ModelProto) -> dict[str, str]:
    """Return the inputs of any rank and type whose values determine a size, with the node that uses that size."""
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = {value.name for value in model.graph.input} - constants
    makers: dict[str, onnx.NodeProto] = {}
    waiting: list[tuple[str, str]] = []
    for node in _all_nodes(model.graph):
        makers.update(dict.fromkeys(filter(None, node.output), node))
        if node.domain in _STANDARD:
            sizes = [place for place in _SIZES.get(node.op_type, ()) if place < len(node.input)]
            waiting += [(node.input[place], node.name or node.output[0]) for place in sizes]
    takers: dict[str, str] = {}
    visited: set[str] = set()
    while waiting:
        name, taker = waiting.pop()
        if name in visited:
            continue
        visited.add(name)
        if name in inputs:
            takers[name] = taker
        maker = makers.get(name)
        if maker is not None and maker.op_type not in _ENDS:
            waiting += [(source, taker) for source in (*maker.input, *names_inside(maker)) if source]
    return takers


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from _all_nodes(inner)
