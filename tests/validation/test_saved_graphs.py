"""Graphs on the disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from plansmith.compilers import onnx_files


@pytest.mark.parametrize("threshold", [0, 1 << 30])
def test_held_graph_keeps_weights_after_writing(tmp_path: Path, threshold: int) -> None:
    """A holder of a graph goes on with its weights after it was written."""
    weights = np.arange(4096, dtype=np.float32).reshape(64, 64)
    form = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [form("x", onnx.TensorProto.FLOAT, ["batch", 64])],
        [form("y", onnx.TensorProto.FLOAT, ["batch", 64])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)])
    path = onnx_files.save(model, tmp_path, threshold_bytes=threshold)
    assert (tmp_path / onnx_files.EXTERNAL_FILE).exists() == (threshold == 0)
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(model.graph.initializer[0]), weights)
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(onnx.load(path).graph.initializer[0]), weights)
