"""Mistakes of lowering, planted into graphs that are right: one a function, with the finding that it has to raise.

Those with Q/DQ are here; those of types and operators are in modules of their own, and in the list at the end.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
from onnx import helper

from plansmith.compilers.precision.graph import Graph

from . import mistakes_of_parser, mistakes_of_types
from .lint_graphs import insert_pair
from .planting import BOTH, TENSORRT, Mistake, give, node_of, registrar, scale_of, value_of

MISTAKES: list[Mistake] = []
_mistake = registrar(MISTAKES)


# Parameters.


@_mistake("cnn", "asymmetric-zero-point", *TENSORRT)
def asymmetric_zero_point(graph: Graph) -> None:
    give(graph, "image_zero", np.asarray(3, np.int8))


@_mistake("cnn", "missing-scale", *BOTH)
def missing_scale(graph: Graph) -> None:
    initializers = graph.model.graph.initializer
    initializers.remove(next(t for t in initializers if t.name == "pool_x_scale"))


@_mistake("cnn", "bad-scale", *BOTH)
def channel_of_scale_zero(graph: Graph) -> None:
    give(graph, "conv1_w_scale", np.where(np.arange(8) == 2, 0, value_of(graph, "conv1_w_scale")).astype(np.float32))


@_mistake("cnn", "bad-scale", *BOTH)
def scale_that_is_not_a_number(graph: Graph) -> None:
    give(graph, "image_scale", np.asarray(np.nan, np.float32))


@_mistake("cnn", "bad-scale", *BOTH)
def subnormal_scale(graph: Graph) -> None:
    give(graph, "image_scale", np.asarray(1e-40, np.float32))


@_mistake("attention", "wrong-axis", *BOTH)
def scales_per_input_channel(graph: Graph) -> None:
    for node in (node_of(graph, "query_w_Q"), node_of(graph, "query_w_DQ")):
        node.attribute[0].i = 0


@_mistake("cnn", "scale-count", *BOTH)
def one_scale_too_few(graph: Graph) -> None:
    give(graph, "conv1_w_scale", value_of(graph, "conv1_w_scale")[:-1])
    give(graph, "conv1_w_zero", value_of(graph, "conv1_w_zero")[:-1])


@_mistake("cnn", "pair-disagrees", *BOTH)
def read_with_another_scale_than_written(graph: Graph) -> None:
    node_of(graph, "pool_x_DQ").input[1] = "image_scale"


@_mistake("cnn", "per-channel-activation", *TENSORRT)
def scale_per_channel_of_an_activation(graph: Graph) -> None:
    give(graph, "pool_x_scale", np.full(8, value_of(graph, "pool_x_scale"), np.float32))
    give(graph, "pool_x_zero", np.zeros(8, np.int8))


@_mistake("cnn", "unsigned-quantisation", *TENSORRT)
def unsigned_activation(graph: Graph) -> None:
    give(graph, "pool_x_zero", np.asarray(0, np.uint8))


@_mistake("cnn", "unsigned-quantisation", *TENSORRT)
def no_zero_point_at_all(graph: Graph) -> None:
    for node in (node_of(graph, "pool_x_Q"), node_of(graph, "pool_x_DQ")):
        del node.input[2]


@_mistake("cnn", "mixed-formats", *TENSORRT)
def fp8_beside_int8(graph: Graph) -> None:
    for name in ("pool_x_zero", "conv2_w_zero"):
        give(graph, name, np.zeros(value_of(graph, name).shape, ml_dtypes.float8_e4m3fn))


@_mistake("cnn", "quantised-type", *TENSORRT)
def sixteen_bits(graph: Graph) -> None:
    give(graph, "pool_x_zero", np.asarray(0, np.int16))


# Places.


@_mistake("attention", "quantised-softmax", *BOTH)
def quantised_probabilities(graph: Graph) -> None:
    insert_pair(graph, "shares", [node_of(graph, "av")], scale_of(1 / 127))


@_mistake("attention", "quantised-softmax", *BOTH)
def quantised_scores(graph: Graph) -> None:
    insert_pair(graph, "products", [node_of(graph, "scale")], scale_of(0.1))


@_mistake("attention", "quantised-attention", *TENSORRT)
def quantised_attention_product(graph: Graph) -> None:
    for tensor in ("query_x", "key_t"):
        insert_pair(graph, tensor, [node_of(graph, "qk")], scale_of(0.05))


@_mistake("attention", "quantised-normalisation", *TENSORRT)
def quantised_normalisation(graph: Graph) -> None:
    insert_pair(graph, "embedded", [node_of(graph, "norm")], scale_of(0.03))


@_mistake("attention", "quantised-output", *BOTH)
def quantised_answer(graph: Graph) -> None:
    node_of(graph, "head").output[0] = "raw"
    scale, zero = (
        graph.add_initializer("raw_scale", scale_of(0.1)),
        graph.add_initializer("raw_zero", np.asarray(0, np.int8)),
    )
    graph.model.graph.node.extend(
        [
            helper.make_node("QuantizeLinear", ["raw", scale, zero], ["raw_q"], "raw_Q"),
            helper.make_node("DequantizeLinear", ["raw_q", scale, zero], ["logits"], "raw_DQ"),
        ]
    )


@_mistake("attention", "quantised-indices", *BOTH)
def quantised_mask(graph: Graph) -> None:
    insert_pair(graph, "penalties", [node_of(graph, "mask_add")], scale_of(10000 / 127))


@_mistake("cnn", "int32-bias", *TENSORRT)
def bias_in_int32(graph: Graph) -> None:
    _quantise_bias(graph, np.int32, 1e-4)


@_mistake("cnn", "eight-bit-bias", *BOTH)
def bias_in_int8(graph: Graph) -> None:
    _quantise_bias(graph, np.int8, 0.02)


@_mistake("cnn", "torn-pair", *TENSORRT)
def pooling_between_q_and_dq(graph: Graph) -> None:
    quantise, read = node_of(graph, "pool_x_Q"), node_of(graph, "pool_x_DQ")
    pool = node_of(graph, "pool")
    quantise.input[0], pool.input[0], read.input[0] = "relu1_x", "pool_x_q", "pool_x"
    moved = [onnx.NodeProto.FromString(node.SerializeToString()) for node in (quantise, pool, read)]
    graph.replace([quantise, pool, read], moved)


@_mistake("attention", "loose-integers", *TENSORRT)
def table_of_words_in_int8(graph: Graph) -> None:
    give(graph, "words", np.clip(value_of(graph, "words") / 0.03, -128, 127).astype(np.int8))
    embed = node_of(graph, "embed")
    embed.output[0] = "embedded_q"
    scale = graph.add_initializer("words_scale", scale_of(0.03))
    read = helper.make_node("DequantizeLinear", ["embedded_q", scale], ["embedded"], "words_DQ")
    graph.replace([embed], [embed, read])


# Calibration.


@_mistake("cnn", "clipped-calibration", *BOTH)
def clipped_calibration(graph: Graph) -> None:
    give(graph, "pool_x_scale", (value_of(graph, "pool_x_scale") / 3).astype(np.float32))


@_mistake("cnn", "vanished-values", *BOTH)
def calibrated_on_values_a_thousand_times_as_large(graph: Graph) -> None:
    give(graph, "pool_x_scale", (value_of(graph, "pool_x_scale") * 1000).astype(np.float32))


def _quantise_bias(graph: Graph, kind: type[np.signedinteger], step: float) -> None:
    bias = value_of(graph, "conv2_b")
    scale = graph.add_initializer("bias_scale", scale_of(step))
    conv = node_of(graph, "conv2")
    give(graph, "conv2_b", np.clip(np.round(bias / step), np.iinfo(kind).min, np.iinfo(kind).max).astype(kind))
    conv.input[2] = "conv2_bias"
    graph.replace([conv], [helper.make_node("DequantizeLinear", ["conv2_b", scale], ["conv2_bias"], "bias_DQ"), conv])


MISTAKES += [*mistakes_of_types.MISTAKES, *mistakes_of_parser.MISTAKES]
