"""What can be wrong in the graph of all-MiniLM-L6-v2; each leaves a valid graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import numpy_helper

from .graphs import Change, Graph, attribute, scalar

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

TRACED_LENGTH = 16
USED_TOKEN = 1996  # "the"
DENSE = "layer.4/output/dense/MatMul"
ELEMENT = (100, 200)


def mask_ignored(graph: Graph) -> None:
    choice = graph.node("model/Where_1")
    choice.input[2] = choice.input[1]


def weight_changed(graph: Graph, user: str, change: Callable[[Array], Array], *, place: int = 1) -> None:
    name = graph.node(user).input[place]
    graph.set_weight(name, change(graph.weight(name)))


def row_zeroed(weight: Array, row: int) -> Array:
    weight[row] = 0
    return weight


def bit_flipped(weight: Array, bit: int) -> Array:
    weight.view(np.uint32)[ELEMENT] ^= np.uint32(1 << bit)
    return weight


def rounded_to_half(weight: Array) -> Array:
    return weight.astype(np.float16).astype(np.float32)


def epsilon_wrong(graph: Graph, epsilon: float) -> None:
    for node in graph.of_type("LayerNormalization"):
        attribute(node, "epsilon").f = epsilon


def node_dropped(graph: Graph, ending: str, *, kept: int) -> None:
    graph.bypass(graph.node(ending), kept=kept)


def queries_and_keys_exchanged(graph: Graph) -> None:
    for kind, place in (("MatMul", 1), ("Add", 0)):
        query, key = (graph.node(f"layer.0/attention/self/{which}/{kind}") for which in ("query", "key"))
        query.input[place], key.input[place] = key.input[place], query.input[place]


def layers_exchanged(graph: Graph) -> None:
    left, right = (graph.node(f"layer.{number}/output/dense/MatMul") for number in (2, 3))
    left.input[1], right.input[1] = right.input[1], left.input[1]


def softmax_over_queries(graph: Graph) -> None:
    attribute(graph.node("layer.5/attention/self/Softmax"), "axis").i = -2


def scale_wrong(graph: Graph) -> None:
    scale = graph.node("layer.3/attention/self/Mul")
    scale.input[1] = graph.constant(scalar(1 / math.sqrt(33), np.float32))


def tanh_for_erf(graph: Graph) -> None:
    graph.node("layer.5/intermediate/intermediate_act_fn/Erf").op_type = "Tanh"


def gelu_approximated(graph: Graph) -> None:
    """The formula of `gelu_new`: tanh(sqrt(2 / pi) (x + 0.044715 x³)) in place of erf(x / sqrt(2))."""
    erf = graph.node("layer.5/intermediate/intermediate_act_fn/Erf")

    def with_number(op_type: str, tensor: str, number: float) -> str:
        return graph.add(op_type, [tensor, graph.constant(scalar(number, np.float32))], before=erf)

    x = with_number("Mul", erf.input[0], math.sqrt(2))
    cubed = with_number("Mul", with_number("Pow", x, 3), 0.044715)
    erf.input[0] = with_number("Mul", graph.add("Add", [x, cubed], before=erf), math.sqrt(2 / math.pi))
    erf.op_type = "Tanh"


def positions_changed(graph: Graph, change: Callable[[Array], Array]) -> None:
    positions = attribute(graph.maker("onnx::Slice_110"), "value").t
    positions.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(positions))))


positions_shifted = partial(positions_changed, change=lambda ids: np.minimum(ids + 1, 511))
positions_end_at_the_traced_length = partial(positions_changed, change=lambda ids: np.minimum(ids, TRACED_LENGTH - 1))


def traced_length_baked_in(graph: Graph) -> None:
    graph.node("embeddings/Slice").input[2] = graph.constant(np.array([TRACED_LENGTH]))


def token_types_ignored(graph: Graph) -> None:
    gather = graph.node("token_type_embeddings/Gather")
    gather.input[1] = graph.add("Mul", [gather.input[1], graph.constant(scalar(0, np.int64))], before=gather)


def wrong_token_pooled(graph: Graph) -> None:
    graph.node("pooler/Gather").input[1] = graph.constant(scalar(1, np.int64))


def samples_reversed(graph: Graph) -> None:
    backwards = [graph.constant(np.array([n])) for n in (-1, -(2**31), 0, -1)]
    graph.follow(graph.node("activation/Tanh"), "Slice", backwards)


def output_made_constant(graph: Graph) -> None:
    graph.follow(graph.node("activation/Tanh"), "Mul", [graph.constant(scalar(0, np.float32))])


def outputs_exchanged(graph: Graph) -> None:
    """`last_hidden_state` is what was pooled, and the other way round; each with its true shape."""
    left, right = graph.model.graph.output
    exchanged = {left.name: right.name, right.name: left.name}
    for node in graph.nodes:
        for names in (node.input, node.output):
            names[:] = [exchanged.get(name, name) for name in names]
    left.name, right.name = right.name, left.name
    first = type(left).FromString(left.SerializeToString())
    left.CopyFrom(right)
    right.CopyFrom(first)


DEFECTS: dict[str, Change] = {
    "the attention mask is ignored": mask_ignored,
    "a row of a weight is zeroed": partial(weight_changed, user=DENSE, change=partial(row_zeroed, row=7)),
    "the embedding of a used word is zeroed": partial(
        weight_changed, user="word_embeddings/Gather", change=partial(row_zeroed, row=USED_TOKEN), place=0
    ),
    "the highest bit of an exponent is flipped": partial(
        weight_changed, user=DENSE, change=partial(bit_flipped, bit=30)
    ),
    "the lowest bit of an exponent is flipped": partial(
        weight_changed, user=DENSE, change=partial(bit_flipped, bit=23)
    ),
    "a sign is flipped": partial(weight_changed, user=DENSE, change=partial(bit_flipped, bit=31)),
    "one weight went through half precision": partial(weight_changed, user=DENSE, change=rounded_to_half),
    "every epsilon is 1e-3": partial(epsilon_wrong, epsilon=1e-3),
    "every epsilon is 1e-5": partial(epsilon_wrong, epsilon=1e-5),
    "a residual is dropped": partial(node_dropped, ending="layer.2/output/Add", kept=0),
    "a bias is dropped": partial(node_dropped, ending="layer.1/attention/self/value/Add", kept=1),
    "the token type embedding is lost": partial(node_dropped, ending="embeddings/Add", kept=0),
    "queries and keys are exchanged": queries_and_keys_exchanged,
    "the weights of two layers are exchanged": layers_exchanged,
    "a softmax runs over the wrong axis": softmax_over_queries,
    "an attention scale is wrong": scale_wrong,
    "a GELU has no erf": partial(node_dropped, ending="layer.5/intermediate/intermediate_act_fn/Erf", kept=0),
    "a GELU has tanh for erf": tanh_for_erf,
    "a GELU is approximated": gelu_approximated,
    "positions are shifted by one": positions_shifted,
    "the wrong token is pooled": wrong_token_pooled,
    "an output is constant": output_made_constant,
}
