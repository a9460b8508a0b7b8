"""Rules on operators: what TensorRT's ONNX parser does not read at all.

All of them from its table of operators and its changelog, as `parser_table` has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from plansmith.compilers.precision.graph import subgraphs
from plansmith.compilers.precision.lint import parser_table
from plansmith.compilers.precision.lint.view import Finding, View, attribute

if TYPE_CHECKING:
    import onnx

_STANDARD = ("", "ai.onnx")
_INTEGER = (
    "ConvInteger",
    "DynamicQuantizeLinear",
    "MatMulInteger",
    "QLinearConv",
    "QLinearMatMul",
)


def operators(view: View) -> Iterator[Finding]:
    """Operators that the parser lacks, also inside of branches and loops; it looks for plugins of their names."""
    if not view.tensorrt:
        return
    local = {(f.domain, f.name) for f in view.model.functions}
    for node in (*_all_nodes(view.nodes), *(n for f in view.model.functions for n in _all_nodes(f.node))):
        if (node.domain, node.op_type) in local or parser_table.is_own(node.op_type):
            continue
        if node.domain not in _STANDARD:
            yield from _foreign(view, node)
        elif node.op_type in _INTEGER:
            words = f"is {node.op_type}, which TensorRT's parser does not read"
            yield Finding("integer-operator", "error", node.name, words, "use QuantizeLinear and DequantizeLinear")
        else:
            yield from _standard(view, node)


def _foreign(view: View, node: onnx.NodeProto) -> Iterator[Finding]:
    """The parser asks the registry for a plugin of the operator's name (FallbackPluginImporter)."""
    words = f"is {node.op_type} of {node.domain}"
    if parser_table.is_library_plugin(node.op_type):
        words += ", which only a TensorRT whose library of plugins has it can build"
        yield Finding("library-plugin", "warning", node.name, words, "see that the target's TensorRT has the plugin")
    elif not view.plugins:
        remedy = "lower without it for TensorRT, or name its library: `tensorrt: {plugins: [...]}`"
        yield Finding("foreign-operator", "error", node.name, f"{words}, which only some runtimes have", remedy)


def _standard(view: View, node: onnx.NodeProto) -> Iterator[Finding]:
    first = parser_table.since(node.op_type)
    is_read = first is not None and first <= view.parser
    if is_read and parser_table.is_by_plugin(node.op_type, attribute(node, "reduction", b"none").decode()):
        words = f"is {node.op_type}, which TensorRT builds with a plugin of libnvinfer_plugin"
        remedy = "see that the target has that library, as NVIDIA's images do"
        yield Finding("standard-plugin", "warning", node.name, words, remedy)
    if is_read or view.plugins:
        return
    words, remedy = f"is {node.op_type}, which TensorRT's parser does not read", "set engine: onnxruntime"
    if first is not None:
        words += parser_table.before(first)
        remedy = f"take a target with TensorRT {first[0]}.{first[1]} or newer, or {remedy}"
    yield Finding("unknown-operator", "error", node.name, words, remedy)


def opset(view: View) -> Iterator[Finding]:
    """The opsets that the engine reads; of TensorRT, where nobody said which, all known ones but the newest do.

    TensorRT's parser looks at no opset, and reads operators as those that it knows are defined.
    """
    if view.tensorrt:
        newest = parser_table.newest_opset(view.parser if view.parser_is_known else parser_table.COMMON)
        oldest, newest = parser_table.OLDEST_OPSET, min(view.max_opset or newest, newest)
        if not oldest <= view.opset <= newest:
            words = f"is of opset {view.opset}; this TensorRT knows the operators of {oldest} to {newest}"
            yield Finding("opset", "warning", "", words, "export with an opset in between")
    elif view.max_opset is not None and not 1 <= view.opset <= view.max_opset:
        words = f"is of opset {view.opset}; {view.engine.value} reads 1 to {view.max_opset}"
        yield Finding("opset", "error", "", words, "export with an opset in between")


def _all_nodes(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from _all_nodes(graph.node)


RULES = (operators, opset)
