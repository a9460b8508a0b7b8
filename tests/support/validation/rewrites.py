"""What tools do to the graph of all-MiniLM-L6-v2 without changing what it computes."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper, version_converter

from .graphs import Change, Graph, attribute, scalar

LAYERS = range(6)


def everything_renamed(graph: Graph) -> None:
    """Nodes, weights and the tensors between nodes; the interface keeps its names."""
    interface_names = {"", *(v.name for v in (*graph.model.graph.input, *graph.model.graph.output))}
    for tensor in graph.model.graph.initializer:
        tensor.name = f"renamed/{tensor.name}"
    for number, node in enumerate(graph.nodes):
        node.name = f"node {number}"
        for names in (node.input, node.output):
            names[:] = [name if name in interface_names else f"renamed/{name}" for name in names]


def constants_made_initialisers(graph: Graph) -> None:
    for node in graph.of_type("Constant"):
        value = numpy_helper.from_array(graph.value(node.output[0]), node.output[0])
        graph.model.graph.initializer.append(value)
        graph.nodes.remove(node)


def equal_constants_shared(graph: Graph) -> None:
    first: dict[bytes, str] = {}
    for node in graph.of_type("Constant"):
        same = first.setdefault(attribute(node, "value").SerializeToString(), node.output[0])
        if same != node.output[0]:
            graph.give_users(node.output[0], same)
            graph.nodes.remove(node)


def shared_constants_doubled(graph: Graph) -> None:
    equal_constants_shared(graph)
    shared = {node.output[0] for node in graph.of_type("Constant")}
    for node in graph.nodes:
        node.input[:] = [graph.constant(graph.value(name)) if name in shared else name for name in node.input]


def identities_inserted(graph: Graph) -> None:
    for node in graph.of_type("MatMul"):
        graph.follow(node, "Identity")


def addends_swapped(graph: Graph) -> None:
    for node in graph.of_type("Add"):
        node.input[:] = [node.input[1], node.input[0]]


def weights_stored_transposed(graph: Graph) -> None:
    stored = {tensor.name for tensor in graph.model.graph.initializer}
    for node in graph.of_type("MatMul"):
        if node.input[1] in stored:
            graph.set_weight(node.input[1], graph.weight(node.input[1]).T.copy())
            node.input[1] = graph.add("Transpose", [node.input[1]], before=node, perm=[1, 0])


def divisions_made_multiplications(graph: Graph) -> None:
    for node in graph.of_type("Div"):
        node.op_type = "Mul"
        node.input[1] = graph.constant(1 / graph.value(node.input[1]))


def gelu_fused(graph: Graph) -> None:
    opset_raised(graph)
    for layer in LAYERS:
        place = f"layer.{layer}/intermediate/intermediate_act_fn/"
        last = graph.node(f"{place}Mul_1")
        graph.add("Gelu", [graph.node(f"{place}Div").input[0]], before=last, outputs=last.output)
        for part in ("Div", "Erf", "Add", "Mul", "Mul_1"):
            graph.nodes.remove(graph.node(f"{place}{part}"))


def normalisations_decomposed(graph: Graph) -> None:
    last_axis = graph.constant(np.array([-1]))
    for node in graph.of_type("LayerNormalization"):
        x, gain, shift = node.input
        epsilon = graph.constant(scalar(attribute(node, "epsilon").f, np.float32))
        centred = graph.add("Sub", [x, graph.add("ReduceMean", [x, last_axis], before=node)], before=node)
        square = graph.add("Mul", [centred, centred], before=node)
        variance = graph.add("ReduceMean", [square, last_axis], before=node)
        deviation = graph.add("Sqrt", [graph.add("Add", [variance, epsilon], before=node)], before=node)
        scaled = graph.add("Mul", [graph.add("Div", [centred, deviation], before=node), gain], before=node)
        graph.add("Add", [scaled, shift], before=node, outputs=node.output)
        graph.nodes.remove(node)


def attention_scale_moved_into_the_queries(graph: Graph) -> None:
    for layer in LAYERS:
        scale = graph.node(f"layer.{layer}/attention/self/Mul")
        factor = graph.value(scale.input[1])
        graph.bypass(scale, kept=0)
        for kind, place in (("MatMul", 1), ("Add", 0)):
            name = graph.node(f"layer.{layer}/attention/self/query/{kind}").input[place]
            graph.set_weight(name, graph.weight(name) * factor)


def queries_keys_and_values_made_in_one_product(graph: Graph) -> None:
    for layer in LAYERS:
        parts = [graph.node(f"layer.{layer}/attention/self/{which}/MatMul") for which in ("query", "key", "value")]
        weight = graph.constant(np.concatenate([graph.weight(part.input[1]) for part in parts], axis=1))
        product = graph.add("MatMul", [parts[0].input[0], weight], before=parts[0])
        graph.add(
            "Split", [product], before=parts[0], outputs=[part.output[0] for part in parts], axis=2, num_outputs=3
        )
        for part in parts:
            graph.nodes.remove(part)


def key_biases_dropped(graph: Graph) -> None:
    """They add the same to every score of a query, which the softmax takes out again."""
    for layer in LAYERS:
        graph.bypass(graph.node(f"layer.{layer}/attention/self/key/Add"), kept=1)


def opset_raised(graph: Graph) -> None:
    graph.model.CopyFrom(version_converter.convert_version(graph.model, 21))


def nodes_in_another_order(graph: Graph) -> None:
    """Depth first from the outputs, the last input first: topological, and unlike the exporter's order."""
    makers = {name: onnx.NodeProto.FromString(n.SerializeToString()) for n in graph.nodes for name in n.output}
    ordered: dict[str, onnx.NodeProto] = {}

    def visit(name: str) -> None:
        if name in makers and name not in ordered:
            for source in reversed(makers[name].input):
                visit(source)
            ordered[name] = makers[name]

    for output in graph.model.graph.output:
        visit(output.name)
    before = [n.name for n in graph.nodes]
    del graph.nodes[:]
    graph.nodes.extend(ordered.values())
    assert before != [n.name for n in graph.nodes]


def words_added(graph: Graph) -> None:
    graph.model.doc_string = graph.model.graph.doc_string = "another text"
    graph.model.producer_name = "another tool"
    helper.set_model_props(graph.model, {"author": "someone"})
    for node in graph.nodes:
        node.doc_string = "a node"


def weights_kept_inside(graph: Graph) -> None:
    for tensor in graph.model.graph.initializer:
        graph.set_weight(tensor.name, graph.weight(tensor.name))


REWRITES: dict[str, Change] = {
    "nodes, weights and tensors are renamed": everything_renamed,
    "constants are made initialisers": constants_made_initialisers,
    "equal constants are shared": equal_constants_shared,
    "shared constants are doubled": shared_constants_doubled,
    "identities are inserted": identities_inserted,
    "the addends of sums are swapped": addends_swapped,
    "weights are stored transposed": weights_stored_transposed,
    "divisions are made multiplications": divisions_made_multiplications,
    "GELU is fused": gelu_fused,
    "normalisations are decomposed": normalisations_decomposed,
    "the attention scale is moved into the queries": attention_scale_moved_into_the_queries,
    "queries, keys and values are made in one product": queries_keys_and_values_made_in_one_product,
    "key biases are dropped": key_biases_dropped,
    "the opset is raised": opset_raised,
    "nodes are in another order": nodes_in_another_order,
    "words are added": words_added,
    "weights are kept inside": weights_kept_inside,
}
