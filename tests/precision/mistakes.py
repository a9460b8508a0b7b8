"""Mistakes of lowering, planted into graphs that are right: one a function, with the finding that it has to raise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from plansmith.compilers.precision.graph import Graph
from plansmith.types import EngineKind

from .lint_graphs import insert_pair

Plant = Callable[[Graph], onnx.ModelProto | None]


@dataclass(frozen=True)
class Mistake:
    """What is planted, into which graph, and what has to be found by the lint for which engines."""

    name: str
    into: str
    finding: str
    engines: tuple[EngineKind, ...]
    plant: Plant


MISTAKES: list[Mistake] = []
_BOTH = (EngineKind.TENSORRT, EngineKind.ONNXRUNTIME)
_TENSORRT = (EngineKind.TENSORRT,)


def _mistake(into: str, finding: str, *engines: EngineKind) -> Callable[[Plant], Plant]:
    def add(plant: Plant) -> Plant:
        MISTAKES.append(Mistake(plant.__name__, into, finding, engines, plant))
        return plant

    return add


# Parameters.


@_mistake("cnn", "asymmetric-zero-point", *_TENSORRT)
def asymmetric_zero_point(graph: Graph) -> None:
    _set(graph, "image_zero", np.asarray(3, np.int8))


@_mistake("cnn", "missing-scale", *_BOTH)
def missing_scale(graph: Graph) -> None:
    initializers = graph.model.graph.initializer
    initializers.remove(next(t for t in initializers if t.name == "pool_x_scale"))


@_mistake("attention", "computed-scale", *_TENSORRT)
def scale_computed_from_the_input(graph: Graph) -> None:
    graph.replace([], [helper.make_node("ReduceMax", ["gamma"], ["normal_range"], "range", keepdims=0)])
    for node in (_node(graph, "normal_Q"), _node(graph, "normal_DQ")):
        node.input[1] = "normal_range"


@_mistake("cnn", "bad-scale", *_BOTH)
def channel_of_scale_zero(graph: Graph) -> None:
    _set(graph, "conv1_w_scale", np.where(np.arange(8) == 2, 0, _get(graph, "conv1_w_scale")).astype(np.float32))


@_mistake("cnn", "bad-scale", *_BOTH)
def scale_that_is_not_a_number(graph: Graph) -> None:
    _set(graph, "image_scale", np.asarray(np.nan, np.float32))


@_mistake("cnn", "bad-scale", *_BOTH)
def subnormal_scale(graph: Graph) -> None:
    _set(graph, "image_scale", np.asarray(1e-40, np.float32))


@_mistake("attention", "wrong-axis", *_BOTH)
def scales_per_input_channel(graph: Graph) -> None:
    for node in (_node(graph, "query_w_Q"), _node(graph, "query_w_DQ")):
        node.attribute[0].i = 0


@_mistake("cnn", "scale-count", *_BOTH)
def one_scale_too_few(graph: Graph) -> None:
    _set(graph, "conv1_w_scale", _get(graph, "conv1_w_scale")[:-1])
    _set(graph, "conv1_w_zero", _get(graph, "conv1_w_zero")[:-1])


@_mistake("cnn", "pair-disagrees", *_BOTH)
def read_with_another_scale_than_written(graph: Graph) -> None:
    _node(graph, "pool_x_DQ").input[1] = "image_scale"


@_mistake("cnn", "per-channel-activation", *_TENSORRT)
def scale_per_channel_of_an_activation(graph: Graph) -> None:
    _set(graph, "pool_x_scale", np.full(8, _get(graph, "pool_x_scale"), np.float32))
    _set(graph, "pool_x_zero", np.zeros(8, np.int8))


@_mistake("cnn", "unsigned-quantisation", *_TENSORRT)
def unsigned_activation(graph: Graph) -> None:
    _set(graph, "pool_x_zero", np.asarray(0, np.uint8))


@_mistake("cnn", "unsigned-quantisation", *_TENSORRT)
def no_zero_point_at_all(graph: Graph) -> None:
    for node in (_node(graph, "pool_x_Q"), _node(graph, "pool_x_DQ")):
        del node.input[2]


@_mistake("cnn", "mixed-formats", *_TENSORRT)
def fp8_beside_int8(graph: Graph) -> None:
    for name in ("pool_x_zero", "conv2_w_zero"):
        _set(graph, name, np.zeros(_get(graph, name).shape, ml_dtypes.float8_e4m3fn))


# Places.


@_mistake("attention", "quantised-softmax", *_BOTH)
def quantised_probabilities(graph: Graph) -> None:
    insert_pair(graph, "shares", [_node(graph, "av")], _scale(1 / 127))


@_mistake("attention", "quantised-softmax", *_BOTH)
def quantised_scores(graph: Graph) -> None:
    insert_pair(graph, "products", [_node(graph, "scale")], _scale(0.1))


@_mistake("attention", "quantised-attention", *_TENSORRT)
def quantised_attention_product(graph: Graph) -> None:
    for tensor in ("query_x", "key_t"):
        insert_pair(graph, tensor, [_node(graph, "qk")], _scale(0.05))


@_mistake("attention", "quantised-normalisation", *_TENSORRT)
def quantised_normalisation(graph: Graph) -> None:
    insert_pair(graph, "embedded", [_node(graph, "norm")], _scale(0.03))


@_mistake("attention", "quantised-output", *_BOTH)
def quantised_answer(graph: Graph) -> None:
    _node(graph, "head").output[0] = "raw"
    scale, zero = (
        graph.add_initializer("raw_scale", _scale(0.1)),
        graph.add_initializer("raw_zero", np.asarray(0, np.int8)),
    )
    graph.model.graph.node.extend(
        [
            helper.make_node("QuantizeLinear", ["raw", scale, zero], ["raw_q"], "raw_Q"),
            helper.make_node("DequantizeLinear", ["raw_q", scale, zero], ["logits"], "raw_DQ"),
        ]
    )


@_mistake("attention", "quantised-indices", *_BOTH)
def quantised_mask(graph: Graph) -> None:
    insert_pair(graph, "penalties", [_node(graph, "mask_add")], _scale(10000 / 127))


@_mistake("cnn", "int32-bias", *_TENSORRT)
def bias_in_int32(graph: Graph) -> None:
    _quantise_bias(graph, np.int32, 1e-4)


@_mistake("cnn", "eight-bit-bias", *_BOTH)
def bias_in_int8(graph: Graph) -> None:
    _quantise_bias(graph, np.int8, 0.02)


@_mistake("cnn", "torn-pair", *_TENSORRT)
def pooling_between_q_and_dq(graph: Graph) -> None:
    quantise, read = _node(graph, "pool_x_Q"), _node(graph, "pool_x_DQ")
    pool = _node(graph, "pool")
    quantise.input[0], pool.input[0], read.input[0] = "relu1_x", "pool_x_q", "pool_x"
    moved = [onnx.NodeProto.FromString(node.SerializeToString()) for node in (quantise, pool, read)]
    graph.replace([quantise, pool, read], moved)


@_mistake("attention", "loose-integers", *_TENSORRT)
def table_of_words_in_int8(graph: Graph) -> None:
    _set(graph, "words", np.clip(_get(graph, "words") / 0.03, -128, 127).astype(np.int8))
    embed = _node(graph, "embed")
    embed.output[0] = "embedded_q"
    scale = graph.add_initializer("words_scale", _scale(0.03))
    read = helper.make_node("DequantizeLinear", ["embedded_q", scale], ["embedded"], "words_DQ")
    graph.replace([embed], [embed, read])


# Calibration.


@_mistake("cnn", "clipped-calibration", *_BOTH)
def clipped_calibration(graph: Graph) -> None:
    _set(graph, "pool_x_scale", (_get(graph, "pool_x_scale") / 3).astype(np.float32))


@_mistake("cnn", "vanished-values", *_BOTH)
def calibrated_on_values_a_thousand_times_as_large(graph: Graph) -> None:
    _set(graph, "pool_x_scale", (_get(graph, "pool_x_scale") * 1000).astype(np.float32))


# Operators.


@_mistake("plain attention", "integer-operator", *_TENSORRT)
def dynamic_quantisation_for_tensorrt(graph: Graph) -> onnx.ModelProto:
    from onnxruntime.quantization import quantize_dynamic

    with TemporaryDirectory() as folder:
        onnx.save(graph.model, Path(folder, "plain.onnx"))
        quantize_dynamic(Path(folder, "plain.onnx"), Path(folder, "dynamic.onnx"))
        return onnx.load(Path(folder, "dynamic.onnx"))


@_mistake("cnn", "foreign-operator", *_TENSORRT)
def operator_of_one_runtime_alone(graph: Graph) -> None:
    graph.model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    _node(graph, "relu1").CopyFrom(
        helper.make_node("QuickGelu", ["conv1_x"], ["relu1_x"], "relu1", domain="com.microsoft")
    )


@_mistake("cnn", "opset", *_TENSORRT)
def opset_that_tensorrt_does_not_read(graph: Graph) -> None:
    graph.model.opset_import[0].version = 25


@_mistake("cnn", "operator-limit", *_TENSORRT)
def pooling_with_dilations(graph: Graph) -> None:
    _node(graph, "pool").attribute.append(helper.make_attribute("dilations", [2, 2]))


# FP16.


@_mistake("half attention", "half-overflow", *_BOTH)
def mask_beyond_fp16(graph: Graph) -> None:
    _set(graph, "lowest", np.asarray(-np.inf, np.float16))


@_mistake("half attention", "constant-nan", *_BOTH)
def weight_that_is_not_a_number(graph: Graph) -> None:
    weight = _get(graph, "query_w").copy()
    weight[3, 4] = np.nan
    _set(graph, "query_w", weight)


@_mistake("half attention", "half-underflow", *_BOTH)
def weight_below_fp16(graph: Graph) -> None:
    _set(graph, "query_w", (_get(graph, "query_w") * np.float16(1e-4)).astype(np.float16))


@_mistake("half attention", "vanished-epsilon", *_BOTH)
def epsilon_that_is_zero_in_fp16(graph: Graph) -> None:
    graph.add_initializer("epsilon", np.asarray(1e-12, np.float16))
    head = _node(graph, "head")
    guard = helper.make_node("Add", ["residual", "epsilon"], ["guarded"], "guard")
    root = helper.make_node("Sqrt", ["guarded"], ["root"], "root")
    head.input[0] = "root"
    graph.replace([head], [guard, root, head])


@_mistake("half attention", "mixed-types", *_BOTH)
def cast_left_out(graph: Graph) -> None:
    _set(graph, "out_b", _get(graph, "out_b").astype(np.float32))


@_mistake("half cnn", "unsorted", *_BOTH)
def cast_behind_what_reads_it(graph: Graph) -> None:
    cast = onnx.NodeProto()
    cast.CopyFrom(next(node for node in graph.model.graph.node if node.op_type == "Cast"))
    graph.model.graph.node.remove(cast)
    graph.model.graph.node.append(cast)


@_mistake("half cnn", "interface", *_BOTH)
def client_sees_fp16(graph: Graph) -> None:
    output = graph.model.graph.output[0]
    maker = graph.producer(output.name)
    assert maker is not None
    assert maker.op_type == "Cast"
    output.name = maker.input[0]
    output.type.tensor_type.elem_type = TensorProto.FLOAT16


def _quantise_bias(graph: Graph, kind: type[np.signedinteger], step: float) -> None:
    bias = _get(graph, "conv2_b")
    scale = graph.add_initializer("bias_scale", _scale(step))
    conv = _node(graph, "conv2")
    _set(graph, "conv2_b", np.clip(np.round(bias / step), np.iinfo(kind).min, np.iinfo(kind).max).astype(kind))
    conv.input[2] = "conv2_bias"
    graph.replace([conv], [helper.make_node("DequantizeLinear", ["conv2_b", scale], ["conv2_bias"], "bias_DQ"), conv])


def _node(graph: Graph, name: str) -> onnx.NodeProto:
    return next(node for node in graph.model.graph.node if node.name == name)


def _get(graph: Graph, name: str) -> NDArray[Any]:
    return onnx.numpy_helper.to_array(next(t for t in graph.model.graph.initializer if t.name == name))


def _set(graph: Graph, name: str, value: NDArray[np.generic]) -> None:
    tensor = next(t for t in graph.model.graph.initializer if t.name == name)
    tensor.CopyFrom(onnx.numpy_helper.from_array(value, name))


def _scale(value: float) -> NDArray[np.float32]:
    return np.asarray(value, np.float32)
