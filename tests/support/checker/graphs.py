"""Small ONNX files with mistakes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Dims = Sequence[int | str | None] | None


def graph(
    *,
    inputs: Mapping[str, tuple[int, Dims]] | None = None,
    outputs: Mapping[str, tuple[int, Dims]] | None = None,
    opset: int = 17,
    ir_version: int = 9,
    nodes: Sequence[onnx.NodeProto] = (),
    **more: Any,
) -> onnx.ModelProto:
    """A graph of such inputs and outputs (name: dtype and dims); the first output is the first input."""
    inputs = inputs or {"x": (TensorProto.FLOAT, ["batch", 3])}
    outputs = outputs or {"y": (TensorProto.FLOAT, ["batch", 3])}
    first = [helper.make_node("Identity", [next(iter(inputs))], [next(iter(outputs))])]
    input_infos, output_infos = (
        [helper.make_tensor_value_info(name, *details) for name, details in side.items()] for side in (inputs, outputs)
    )
    onnx_graph = helper.make_graph([*first, *nodes], "small", input_infos, output_infos, **more)
    return helper.make_model(onnx_graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def content(model: onnx.ModelProto) -> bytes:
    """The bytes of a file."""
    return bytes(model.SerializeToString())


def weights(name: str, *shape: int) -> onnx.TensorProto:
    """An initialiser of zeros."""
    return numpy_helper.from_array(np.zeros(shape, np.float32), name)


def outside(name: str, location: str, *shape: int) -> onnx.TensorProto:
    """An initialiser whose numbers lie in another file."""
    tensor = TensorProto(name=name, dims=shape, data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    return tensor
