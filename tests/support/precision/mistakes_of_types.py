"""Mistakes of types and operators: what TensorRT does not read, what FP16 cannot hold, casts that are missing."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnx import TensorProto, helper

from plansmith.compilers.precision.graph import Graph

from .planting import BOTH, TENSORRT, Mistake, give, node_of, registrar, value_of

MISTAKES: list[Mistake] = []
_mistake = registrar(MISTAKES)


# Operators.


@_mistake("plain attention", "integer-operator", *TENSORRT)
def dynamic_quantisation_for_tensorrt(graph: Graph) -> onnx.ModelProto:
    from onnxruntime.quantization import quantize_dynamic

    with TemporaryDirectory() as folder:
        onnx.save(graph.model, Path(folder, "plain.onnx"))
        quantize_dynamic(Path(folder, "plain.onnx"), Path(folder, "dynamic.onnx"))
        return onnx.load(Path(folder, "dynamic.onnx"))


@_mistake("cnn", "foreign-operator", *TENSORRT)
def operator_of_one_runtime_alone(graph: Graph) -> None:
    graph.model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    node_of(graph, "relu1").CopyFrom(
        helper.make_node("QuickGelu", ["conv1_x"], ["relu1_x"], "relu1", domain="com.microsoft")
    )


@_mistake("cnn", "operator-limit", *TENSORRT)
def pooling_with_dilations(graph: Graph) -> None:
    node_of(graph, "pool").attribute.append(helper.make_attribute("dilations", [2, 2]))


# FP16.


@_mistake("half attention", "half-overflow", *BOTH)
def mask_beyond_fp16(graph: Graph) -> None:
    give(graph, "lowest", np.asarray(-np.inf, np.float16))


@_mistake("half attention", "constant-nan", *BOTH)
def weight_that_is_not_a_number(graph: Graph) -> None:
    weight = value_of(graph, "query_w").copy()
    weight[3, 4] = np.nan
    give(graph, "query_w", weight)


@_mistake("half attention", "half-underflow", *BOTH)
def weight_below_fp16(graph: Graph) -> None:
    give(graph, "query_w", (value_of(graph, "query_w") * np.float16(1e-4)).astype(np.float16))


@_mistake("half attention", "vanished-epsilon", *BOTH)
def epsilon_that_is_zero_in_fp16(graph: Graph) -> None:
    graph.add_initializer("epsilon", np.asarray(1e-12, np.float16))
    head = node_of(graph, "head")
    guard = helper.make_node("Add", ["residual", "epsilon"], ["guarded"], "guard")
    root = helper.make_node("Sqrt", ["guarded"], ["root"], "root")
    head.input[0] = "root"
    graph.replace([head], [guard, root, head])


@_mistake("half attention", "mixed-types", *BOTH)
def cast_left_out(graph: Graph) -> None:
    give(graph, "out_b", value_of(graph, "out_b").astype(np.float32))


@_mistake("half cnn", "unsorted", *BOTH)
def cast_behind_what_reads_it(graph: Graph) -> None:
    cast = onnx.NodeProto()
    cast.CopyFrom(next(node for node in graph.model.graph.node if node.op_type == "Cast"))
    graph.model.graph.node.remove(cast)
    graph.model.graph.node.append(cast)


@_mistake("half cnn", "interface", *BOTH)
def client_sees_fp16(graph: Graph) -> None:
    output = graph.model.graph.output[0]
    maker = graph.producer(output.name)
    assert maker is not None
    assert maker.op_type == "Cast"
    output.name = maker.input[0]
    output.type.tensor_type.elem_type = TensorProto.FLOAT16


@_mistake("half attention", "half-overflow", *BOTH)
def constant_that_a_cast_overflows(graph: Graph) -> None:
    give(graph, "lowest", np.asarray(-1e9, np.float32))
    cast = helper.make_node("Cast", ["lowest"], ["lowest_half"], "lowest_cast", to=TensorProto.FLOAT16)
    weigh = node_of(graph, "mask_weigh")
    weigh.input[1] = "lowest_half"
    graph.replace([weigh], [cast, weigh])


@_mistake("plain attention", "operator-type", *BOTH)
def mask_that_stays_boolean(graph: Graph) -> None:
    node_of(graph, "mask_cast").attribute[0].i = TensorProto.BOOL


@_mistake("plain attention", "inference", *BOTH)
def weight_of_another_shape(graph: Graph) -> None:
    give(graph, "out_w", value_of(graph, "out_w")[:-1])


@_mistake("plain cnn", "unknown-operator", *TENSORRT)
def operator_that_tensorrt_lacks(graph: Graph) -> None:
    head = node_of(graph, "head")
    graph.replace([head], [helper.make_node("Compress", ["flat", "chosen"], ["some"], "choose", axis=1), head])
    graph.add_initializer("chosen", np.ones(8, np.bool_))
    node_of(graph, "head").input[0] = "some"


@_mistake("plain attention", "strings", *TENSORRT)
def text_as_an_input(graph: Graph) -> None:
    graph.model.graph.input.append(helper.make_tensor_value_info("text", TensorProto.STRING, ["batch"]))
