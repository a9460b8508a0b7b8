"""An ONNX graph that takes INT32 in place of INT64, or images with their channels last, and converts them itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from plansmith.compilers.precision.graph import Graph, subgraphs
from plansmith.config.spec import DescribedInput
from plansmith.errors import UsageError
from plansmith.sources.served_form import NCHW, NHWC

if TYPE_CHECKING:
    import onnx


def take_served_form(model: onnx.ModelProto, changes: Mapping[str, DescribedInput]) -> None:
    """Put conversions behind inputs of a graph, and change the types of these inputs.

    The inputs keep their names, and all that took them, branches and loop bodies included, takes what was converted.

    Args:
        model: changed; its weights are not looked at, and may lie in files beside it.
        changes: from `served_form.changes_of`, for inputs that can be served so.

    Raises:
        UsageError: such an input is an output as well.
    """
    graph = Graph(model)
    conversions: list[onnx.NodeProto] = []
    for value in model.graph.input:
        change = changes.get(value.name)
        if change is None:
            continue
        _require_no_output(value.name, change, graph)
        nodes = _conversions(value.name, change, graph)
        _rename(model, graph, value.name, nodes[-1].output[0])
        _change_type(value.type.tensor_type, change)
        conversions += nodes
    graph.prepend(conversions)


def _require_no_output(name: str, change: DescribedInput, graph: Graph) -> None:
    if name in graph.outputs:
        key = "io_dtypes" if change.served_dtype else "io_layouts"
        raise UsageError(
            f"{key}: {name} is an output of the graph, too, and cannot have two forms",
            remedy=f"leave {name} out of `{key}`",
        )


def _conversions(name: str, change: DescribedInput, graph: Graph) -> list[onnx.NodeProto]:
    """The nodes that make of an input what the graph takes; the last one's output is that."""
    import onnx

    nodes: list[onnx.NodeProto] = []
    if change.layout:
        made = graph.fresh(f"{name}_nchw")
        nodes.append(onnx.helper.make_node("Transpose", [name], [made], name=graph.fresh(f"{made}_node"), perm=NCHW))
        name = made
    if change.served_dtype:
        made = graph.fresh(f"{name}_int64")
        kind = onnx.TensorProto.INT64
        nodes.append(onnx.helper.make_node("Cast", [name], [made], name=graph.fresh(f"{made}_node"), to=kind))
    return nodes


def _rename(model: onnx.ModelProto, graph: Graph, old: str, new: str) -> None:
    """Have everything that takes a tensor take another one."""
    for node in graph.consumers(old):
        _rename_in(node, old, new)
    for value in model.graph.value_info:
        if value.name == old:
            value.name = new


def _rename_in(node: onnx.NodeProto, old: str, new: str) -> None:
    for place, name in enumerate(node.input):
        if name == old:
            node.input[place] = new
    for inner in subgraphs(node):
        own = {value.name for value in inner.input} | {tensor.name for tensor in inner.initializer}
        own |= {name for made in inner.node for name in made.output}
        if old in own:
            continue
        for value in inner.output:
            if value.name == old:
                value.name = new
        for one in inner.node:
            _rename_in(one, old, new)


def _change_type(kind: onnx.TypeProto.Tensor, change: DescribedInput) -> None:
    import onnx

    if change.served_dtype:
        kind.elem_type = onnx.TensorProto.INT32
    if change.layout and kind.shape.dim:  # there are none where the graph does not know the rank
        dims = [onnx.TensorShapeProto.Dimension.FromString(one.SerializeToString()) for one in kind.shape.dim]
        del kind.shape.dim[:]
        kind.shape.dim.extend(dims[axis] for axis in NHWC)
