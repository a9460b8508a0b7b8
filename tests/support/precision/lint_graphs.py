"""Two small graphs, an attention block and a CNN, lowered rightly by hand: to INT8 with Q/DQ, and to FP16."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from plansmith.compilers.precision import calibration
from plansmith.compilers.precision.graph import Graph
from plansmith.data.reference import StoredCase

WIDTH, WORDS, CLASSES = 16, 40, 5
OPSET = 21
PROJECTIONS = ("query", "key", "value", "out")
LAYERS = ("conv1", "conv2")

Arrays = dict[str, NDArray[np.generic]]


def attention() -> onnx.ModelProto:
    """Embedding, normalisation, masked attention of one head, a residual and a head over the classes."""
    noise = np.random.default_rng(4)
    nodes = [
        helper.make_node("Gather", ["words", "ids"], ["embedded"], "embed"),
        helper.make_node("LayerNormalization", ["embedded", "gamma", "beta"], ["normal"], "norm", axis=-1),
        *(
            helper.make_node("MatMul", ["normal" if name != "out" else "mixed", f"{name}_w"], [f"{name}_x"], name)
            for name in ("query", "key", "value")
        ),
        helper.make_node("Transpose", ["key_x"], ["key_t"], "turn", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["query_x", "key_t"], ["products"], "qk"),
        helper.make_node("Mul", ["products", "quarter"], ["scaled"], "scale"),
        helper.make_node(
            "Cast",
            [
                "mask",
            ],
            ["mask_f"],
            "mask_cast",
            to=TensorProto.FLOAT,
        ),
        helper.make_node("Sub", ["one", "mask_f"], ["absent"], "mask_invert"),
        helper.make_node("Mul", ["absent", "lowest"], ["penalty"], "mask_weigh"),
        helper.make_node("Unsqueeze", ["penalty", "middle"], ["penalties"], "mask_widen"),
        helper.make_node("Add", ["scaled", "penalties"], ["scores"], "mask_add"),
        helper.make_node("Softmax", ["scores"], ["shares"], "softmax", axis=-1),
        helper.make_node("MatMul", ["shares", "value_x"], ["mixed"], "av"),
        helper.make_node("MatMul", ["mixed", "out_w"], ["out_x"], "out"),
        helper.make_node("Add", ["out_x", "out_b"], ["out_y"], "out_bias"),
        helper.make_node("Add", ["out_y", "normal"], ["residual"], "add"),
        helper.make_node("MatMul", ["residual", "head_w"], ["logits"], "head"),
    ]
    weights = {
        "words": noise.normal(size=(WORDS, WIDTH)),
        "gamma": np.ones(WIDTH),
        "beta": np.full(WIDTH, 0.1),
        **{f"{name}_w": noise.normal(size=(WIDTH, WIDTH)) / 4 for name in PROJECTIONS},
        "out_b": noise.normal(size=WIDTH),
        "head_w": noise.normal(size=(WIDTH, CLASSES)),
        "quarter": np.asarray(0.25),
        "one": np.asarray(1.0),
        "lowest": np.asarray(-10000.0),
    }
    ids = [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "length"]) for n in ("ids", "mask")]
    return _model(nodes, weights, ids, ["batch", "length", CLASSES], {"middle": np.asarray([1], np.int64)})


def cnn() -> onnx.ModelProto:
    """Two convolutions, pooling, and a head over the classes."""
    noise = np.random.default_rng(5)
    nodes = [
        helper.make_node("Conv", ["image", "conv1_w", "conv1_b"], ["conv1_x"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv1_x"], ["relu1_x"], "relu1"),
        helper.make_node("MaxPool", ["relu1_x"], ["pool_x"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["pool_x", "conv2_w", "conv2_b"], ["conv2_x"], "conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv2_x"], ["relu2_x"], "relu2"),
        helper.make_node("GlobalAveragePool", ["relu2_x"], ["mean"], "average"),
        helper.make_node("Flatten", ["mean"], ["flat"], "flatten"),
        helper.make_node("Gemm", ["flat", "head_w", "head_b"], ["logits"], "head"),
    ]
    weights = {
        "conv1_w": noise.normal(size=(8, 3, 3, 3)) / 5,
        "conv1_b": noise.normal(size=8),
        "conv2_w": noise.normal(size=(8, 8, 3, 3)) / 8,
        "conv2_b": noise.normal(size=8),
        "head_w": noise.normal(size=(8, CLASSES)),
        "head_b": noise.normal(size=CLASSES),
    }
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 12, 12])
    return _model(nodes, weights, [image], ["batch", CLASSES], {})


def feeds_of(model: onnx.ModelProto, batches: int = 3) -> list[Arrays]:
    """Inputs of several sizes."""
    noise = np.random.default_rng(6)
    if model.graph.input[0].name == "image":
        return [{"image": noise.normal(size=(n + 1, 3, 12, 12)).astype(np.float32)} for n in range(batches)]
    feeds: list[Arrays] = []
    for n in range(batches):
        mask = np.ones((2, 6 + n), np.int64)
        mask[0, 4:] = 0
        feeds.append({"ids": noise.integers(0, WORDS, mask.shape), "mask": mask})
    return feeds


def cases_of(model: onnx.ModelProto) -> list[StoredCase]:
    """The same as samples."""
    return [StoredCase(f"sample-{i}", feed, {}, np.arange(1)) for i, feed in enumerate(feeds_of(model))]


def quantised(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """INT8 as TensorRT wants it: symmetric pairs on activations, per output channel on weights, biases left alone."""
    lowered = onnx.ModelProto()
    lowered.CopyFrom(model)
    graph = Graph(lowered)
    nodes = {node.name: node for node in lowered.graph.node if node.name in names}
    largest = dict.fromkeys((node.input[0] for node in nodes.values()), 0.0)
    for values in calibration.stream(model, feeds_of(model), list(largest)):
        largest = {name: max(most, float(np.abs(values[name]).max())) for name, most in largest.items()}
    for tensor, most in largest.items():
        takers = [node for node in nodes.values() if node.input[0] == tensor]
        insert_pair(graph, tensor, takers, np.asarray(most / 127, np.float32))
    for name in nodes:
        node = next(node for node in lowered.graph.node if node.name == name)
        weight = graph.constant(node.input[1])
        assert weight is not None
        axis = {"Conv": 0, "MatMul": 1}[node.op_type]
        others = tuple(i for i in range(weight.ndim) if i != axis)
        scale = (np.abs(weight).max(axis=others) / 127).astype(np.float32)
        insert_pair(graph, node.input[1], [node], scale, axis=axis)
    return lowered


def insert_pair(
    graph: Graph,
    tensor: str,
    takers: Iterable[onnx.NodeProto],
    scale: NDArray[np.generic],
    *,
    axis: int = 1,
    kind: type[np.generic] | np.dtype[np.generic] = np.int8,
) -> None:
    """Put Q and DQ between a tensor and some of the nodes that take it."""
    names = {taker.name for taker in takers}
    scale_name = graph.add_initializer(f"{tensor}_scale", scale)
    zero_name = graph.add_initializer(f"{tensor}_zero", np.zeros(scale.shape, kind))
    attributes: dict[str, Any] = {"axis": axis} if scale.ndim else {}
    parameters = [scale_name, zero_name]
    pair = [
        helper.make_node("QuantizeLinear", [tensor, *parameters], [f"{tensor}_q"], f"{tensor}_Q", **attributes),
        helper.make_node(
            "DequantizeLinear", [f"{tensor}_q", *parameters], [f"{tensor}_dq"], f"{tensor}_DQ", **attributes
        ),
    ]
    changed = [node for node in graph.model.graph.node if node.name in names]
    for node in changed:
        node.input[:] = [f"{tensor}_dq" if name == tensor else name for name in node.input]
    graph.replace(changed[:1], [*pair, *changed[:1]])


def halved(model: onnx.ModelProto) -> onnx.ModelProto:
    """FP16 inside, FP32 at the outside."""
    from onnxruntime.transformers.float16 import convert_float_to_float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    lowered: onnx.ModelProto = convert_float_to_float16(copy, keep_io_types=True)
    OnnxModel(lowered).topological_sort()  # the converter appends its casts
    return lowered


def _model(
    nodes: list[onnx.NodeProto],
    weights: dict[str, NDArray[np.float64]],
    inputs: list[onnx.ValueInfoProto],
    dims: list[str | int],
    indices: dict[str, NDArray[np.int64]],
) -> onnx.ModelProto:
    constants: dict[str, Any] = {**{name: value.astype(np.float32) for name, value in weights.items()}, **indices}
    graph = helper.make_graph(
        nodes,
        "small",
        inputs,
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, dims)],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return model
