"""A plan's inputs and outputs: by the JSON of 11 where it tells, else by the graph."""

from __future__ import annotations

import json

from plansmith.compilers.trtexec.tensors import plan_tensors
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


def test_eleven_tells_types_dims_and_formats_itself() -> None:
    tokens, _, out = plan_tensors(json.dumps(ELEVEN), GRAPH, {})
    assert (tokens.name, tokens.is_input, tokens.dtype, tokens.dims) == ("tokens", True, "int32", (-1, 16))
    assert (tokens.format, tokens.is_shape) == ("CHW4", True)
    assert (out.is_input, out.dtype, out.format, out.is_shape) == (False, "float16", "LINEAR", False)


def test_what_ten_only_names_is_the_graph_s_with_the_formats_that_were_asked_for() -> None:
    told = json.dumps({"Layers": [], "Bindings": ["tokens", "out", "tokens [profile 1]", "out [profile 1]"]})
    tokens, unused, out = plan_tensors(told, GRAPH, {"out": "hwc8"})
    assert (tokens.name, tokens.dtype, tokens.dims, tokens.format) == ("tokens", "int64", (-1, 16), "LINEAR")
    assert (unused.name, unused.is_input) == ("unused", True)
    assert (out.name, out.is_input, out.format) == ("out", False, "HWC8")


def test_dims_that_are_not_told_are_the_graph_s() -> None:
    (tokens, *_) = plan_tensors(json.dumps({"I/O Tensors": [{"Name": "tokens", "DataType": "Int64"}]}), GRAPH, {})
    assert tokens.dims == (-1, 16)


def test_a_plan_that_tells_nothing_has_all_that_the_graph_has() -> None:
    assert [tensor.name for tensor in plan_tensors("", GRAPH, {})] == ["tokens", "unused", "out"]


def test_a_type_by_a_name_that_is_not_known_is_the_graph_s() -> None:
    told = json.dumps({"I/O Tensors": [{"Name": "out", "DataType": "Float13"}]})
    assert plan_tensors(told, GRAPH, {})[-1].dtype == "float16"
