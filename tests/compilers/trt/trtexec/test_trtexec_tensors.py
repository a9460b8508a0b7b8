"""A plan's inputs and outputs: by the JSON of 11 where it tells, else by the graph."""

from __future__ import annotations

import json

from plansmith.compilers.trt.trtexec.building import plan_tensors
from plansmith.records.model import Component, Tensor

GRAPH = Component(
    file="model.onnx",
    external_files=(),
    inputs=(Tensor(name="tokens", dtype="int64", dims=("batch", 16)), Tensor(name="unused", dtype="bool", dims=(1,))),
    outputs=(Tensor(name="out", dtype="float16", dims=("batch", 16)),),
    opset=17,
    ir_version=8,
)

# The form of 11.0, as a public repository's test data has it ("I/O Tensors" with "ProfileInfo").
ELEVEN = {
    "Layers": [],
    "I/O Tensors": [
        {
            "Name": "tokens",
            "IOMode": "INPUT",
            "DataType": "Int32",
            "Dimensions": [-1, 16],
            "Location": "DEVICE",
            "IsShapeInferenceIO": True,
            "ProfileInfo": [{"MinShape": [1, 16], "OptShape": [2, 16], "MaxShape": [8, 16], "Format": "CHW4"}],
        },
        {"Name": "out", "IOMode": "OUTPUT", "Datatype": "FP16", "Dimensions": [-1, 16], "ProfileInfo": []},
    ],
}


def test_eleven_tells_tensors_itself() -> None:
    """TensorRT 11 tells types, dims and formats itself."""
    tokens, _, out = plan_tensors(json.dumps(ELEVEN), GRAPH, {})
    assert (tokens.name, tokens.is_input, tokens.dtype, tokens.dims) == ("tokens", True, "int32", (-1, 16))
    assert (tokens.format, tokens.is_shape) == ("CHW4", True)
    assert (out.is_input, out.dtype, out.format, out.is_shape) == (False, "float16", "LINEAR", False)


def test_ten_takes_graph_tensors() -> None:
    """What TensorRT 10 only names is taken from the graph, with the formats that were asked for."""
    document = json.dumps({"Layers": [], "Bindings": ["tokens", "out", "tokens [profile 1]", "out [profile 1]"]})
    tokens, unused, out = plan_tensors(document, GRAPH, {"out": "hwc8"})
    assert (tokens.name, tokens.dtype, tokens.dims, tokens.format) == ("tokens", "int64", (-1, 16), "LINEAR")
    assert (unused.name, unused.is_input) == ("unused", True)
    assert (out.name, out.is_input, out.format) == ("out", False, "HWC8")


def test_untold_dims_taken_from_graph() -> None:
    """Dims that are not told are the graph's."""
    (tokens, *_) = plan_tensors(json.dumps({"I/O Tensors": [{"Name": "tokens", "DataType": "Int64"}]}), GRAPH, {})
    assert tokens.dims == (-1, 16)


def test_silent_plan_takes_graph_tensors() -> None:
    """A plan that tells nothing has all that the graph has."""
    assert [tensor.name for tensor in plan_tensors("", GRAPH, {})] == ["tokens", "unused", "out"]


def test_unknown_type_taken_from_graph() -> None:
    """A type whose name is not known is the graph's."""
    document = json.dumps({"I/O Tensors": [{"Name": "out", "DataType": "Float13"}]})
    assert plan_tensors(document, GRAPH, {})[-1].dtype == "float16"
