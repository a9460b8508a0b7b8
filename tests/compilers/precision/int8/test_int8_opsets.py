"""Files of old opsets are lowered like new ones: converted once, with the same names and answers, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from plansmith.compilers.precision import opsets
from plansmith.compilers.precision.opsets import modern
from plansmith.errors import ExportError
from plansmith.records.model import EngineKind

from ....support.precision import hand_made, pipeline
from ....support.precision.half_graphs import run

OLD = [9, 10, 11, 12]


@pytest.mark.parametrize("precision", ["int8", "fp16", "bf16"])
@pytest.mark.parametrize("opset", OLD)
def test_old_opset_file_is_lowered(opset: int, precision: str, tmp_path: Path) -> None:
    """A file of an old opset is lowered."""
    path = _old(opset, tmp_path / "old.onnx")
    prepared = pipeline.prepare(path, hand_made.write_rows(tmp_path), tmp_path / "prepared")
    engine = EngineKind.TENSORRT if precision == "bf16" else EngineKind.ONNXRUNTIME
    lowered = prepared.lower(precision, tmp_path / "lowered", engine=engine, quantisation="static")
    assert lowered.record.components
    assert lowered.record.precision == precision
    model = onnx.load(lowered.folder / "model.onnx")
    assert next(o.version for o in model.opset_import if not o.domain) >= opsets.WANTED
    names = {node.name for node in model.graph.node}
    assert {"first_product", "soft"} <= names
    assert [v.name for v in model.graph.input] == ["x"]


@pytest.mark.parametrize(("opset", "oldest"), [(7, 13), *((opset, 13) for opset in OLD), (9, 19), (17, 19)])
@pytest.mark.parametrize("large_bytes", [64, 1 << 20])
def test_conversion_keeps_names_and_weights(
    opset: int, oldest: int, large_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names answers and weights stay when a graph is converted."""
    monkeypatch.setattr(opsets, "_LARGE_BYTES", large_bytes)
    old = onnx.load(_old(opset, tmp_path / "old.onnx"))
    assert len(old.graph.input) > 1, "weights are listed among the inputs"
    copy = onnx.ModelProto()
    copy.CopyFrom(old)
    feed = {"x": hand_made.rows()[:5]}
    result = modern(copy, feed, oldest)
    assert result.opset_import[0].version == max(oldest, opsets.WANTED)
    onnx.checker.check_model(result, full_check=True)
    assert {n.name for n in result.graph.node if n.name} == {n.name for n in old.graph.node if n.op_type != "Constant"}
    assert {t.name for t in old.graph.initializer} <= {t.name for t in result.graph.initializer}
    assert {t.name for t in old.graph.initializer} == {t.name for t in copy.graph.initializer}
    assert [v.name for v in result.graph.input] == ["x"]
    assert [d.dim_param for d in result.graph.input[0].type.tensor_type.shape.dim] == ["batch", ""]
    np.testing.assert_allclose(run(result, tmp_path, feed)[0], run(old, tmp_path, feed)[0], rtol=1e-5, atol=1e-6)


def test_new_enough_graph_is_same_object() -> None:
    """A graph that is new enough is the same object."""
    model = helper.make_model(_graph(13), opset_imports=[helper.make_opsetid("", 13)])
    assert modern(model, {}) is model


def test_unconvertible_opset_refused() -> None:
    """What cannot be converted is refused with its opset and what to do."""
    model = _single_node_model("NotAnOperator", 11)
    with pytest.raises(ExportError, match=r"opset 11, which .*NotAnOperator") as caught:
        modern(model, {})
    assert caught.value.remedy == "export it with opset 17 or newer"
    assert "/" not in caught.value.message


def test_changed_graph_conversion_refused() -> None:
    """An interpolating Upsample counts from corners, and a Resize without attributes from the pixels' middle."""
    model = _single_node_model("Upsample", 9, mode="linear", scales=np.array([1, 1, 2, 2], np.float32))
    with pytest.raises(ExportError, match=r"opset 9, which .* answers differ by ") as caught:
        modern(model, {"x": np.random.default_rng(0).normal(size=(2, 1, 4, 4)).astype(np.float32)})
    assert caught.value.remedy == "export it with opset 17 or newer"


def _single_node_model(operator: str, opset: int, scales: Any = None, **attributes: Any) -> onnx.ModelProto:
    inputs = ["x"] if scales is None else ["x", "scales"]
    stored = [] if scales is None else [numpy_helper.from_array(scales, "scales")]
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["N", 1, f"h{n}", f"w{n}"]) for n in "xy"]
    node = helper.make_node(operator, inputs, ["y"], **attributes)
    graph = helper.make_graph([node], "one", ends[:1], ends[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=6)


def _old(opset: int, path: Path) -> Path:
    """A graph as old exporters wrote it: weights among the inputs, axes and bounds as attributes, Constant nodes."""
    graph = _graph(opset)
    listed = [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in graph.initializer]
    graph.input.extend(listed)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3)
    onnx.save(model, path)
    return path


def _graph(opset: int) -> onnx.GraphProto:
    rng, width = np.random.default_rng(2), hand_made.WIDTH
    make = helper.make_node
    axes: dict[str, Any] = {"axes": [1]} if opset < 13 else {}
    nodes = [
        make("Constant", [], ["two"], name="constant", value=numpy_helper.from_array(np.array(2, np.float32))),
        make("Mul", ["x", "two"], ["doubled"], name="double"),
        make("MatMul", ["doubled", "first"], ["a"], name="first_product"),
        make("Equal", ["whole", "zero"], ["none"], name="equal"),
        make("Cast", ["a"], ["whole"], name="count", to=onnx.TensorProto.INT64),
        make("Where", ["none", "two", "a"], ["b"], name="where"),
        make("Unsqueeze", ["b", *([] if axes else ["one"])], ["c"], name="up", **axes),
        make("ReduceMean", ["c"], ["d"], name="mean", axes=[1], keepdims=1),
        make("Squeeze", ["d", *([] if axes else ["one"])], ["e"], name="down", **axes),
        make("Softmax", ["e"], ["f"], name="soft", axis=1),
        make("Mul", ["f", "a"], ["g"], name="weigh"),
        make("Gemm", ["g", "head", "bias"], ["y"], name="head_product"),
    ]
    nodes[3], nodes[4] = nodes[4], nodes[3]
    if opset < 9:
        nodes[5] = make("Tanh", ["a"], ["b"], name="where")
        nodes[3:5] = []
    stored: dict[str, Any] = {
        "first": rng.standard_normal((width, width)).astype(np.float32),
        "head": rng.standard_normal((width, width)).astype(np.float32),
        "bias": rng.standard_normal((1, width)).astype(np.float32),
        "zero": np.array(0, np.int64),
        "one": np.array([1], np.int64),
    }
    used = {name for node in nodes for name in node.input}
    tensors = [numpy_helper.from_array(v, n) for n, v in stored.items() if n in used]
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["batch", width]) for n in "xy"]
    return helper.make_graph(nodes, "old", ends[:1], ends[1:], tensors)
