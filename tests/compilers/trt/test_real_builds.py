"""Builds by a real parser and builder, those of TensorRT-RTX: what they refuse is named, and what they take is a plan.

They need no GPU; a plan is looked at by a runtime, which does. So a build that goes well ends where that begins.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from plansmith.compilers.trt.inspection.header import read_header
from plansmith.errors import EngineError
from plansmith.records.engine import BuildRequest, BuildSpec

from ...support.precision.small_graphs import LIMITS
from ...support.precision.small_graphs import graph as small_graph
from ...support.tensorrt import rtx
from ...support.tensorrt.builds import gpu

pytestmark = [pytest.mark.services, pytest.mark.xdist_group("rtx")]

FLOAT, INT32, INT64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64


def model(nodes: list[Any], inputs: dict[str, tuple[int, list[Any]]], output: int = FLOAT, **weights: Any) -> bytes:
    """A graph with one output, y, of unknown shape."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, *one) for name, one in inputs.items()],
        [helper.make_tensor_value_info("y", output, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def product() -> bytes:
    weights = np.ones((4, 3), np.float32)
    return model([helper.make_node("MatMul", ["x", "w"], ["y"], name="mul")], {"x": (FLOAT, ["batch", 4])}, w=weights)


def dilated_pool() -> bytes:
    pool = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], dilations=[2, 2])
    return model([pool], {"x": (FLOAT, [1, 1, 8, 8])})


def mixed_integers() -> bytes:
    add = helper.make_node("Add", ["x", "z"], ["y"], name="add")
    return model([add], {"x": (INT64, [4]), "z": (INT32, [4])}, INT64)


def expanded() -> bytes:
    """Its second input holds a shape."""
    return model([helper.make_node("Expand", ["x", "shape"], ["y"])], {"x": (FLOAT, [1, 4]), "shape": (INT64, [2])})


def moving(least: int, most: int, width: int = 4) -> dict[str, Any]:
    """A profile for x: shapes with these batches, of this width."""
    return {"shapes": {"x": {"min": [least, width], "opt": [least, width], "max": [most, width]}}}


def built(folder: Path, graph: bytes, profile: dict[str, Any] | None = None) -> dict[str, Any]:
    """What a build of a graph ended with."""
    file, out = folder / "model.onnx", folder / "out"
    file.write_bytes(graph)
    out.mkdir()
    spec = BuildSpec.model_validate({"profiles": [{"name": "all", **profile}] if profile else []})
    request = BuildRequest(
        graph=str(file), out=str(out), spec=spec, gpu=gpu(), trtexec="", timing_cache="", deadline_seconds=120
    )
    return rtx.build(request)


def test_a_graph_with_a_moving_batch_becomes_a_plan(tmp_path: Path) -> None:
    found = built(tmp_path, product(), moving(1, 8))
    assert (tmp_path / "out" / "model.plan").stat().st_size > 1000, found
    assert found["error"] == "EnvironmentFault"
    assert "driver" in found["message"]


def test_an_engine_of_rtx_is_named_where_a_plan_belongs(tmp_path: Path) -> None:
    built(tmp_path, product(), moving(1, 8))
    with pytest.raises(EngineError, match=rf"an engine of TensorRT-RTX {rtx.VERSION} for .* 8\.9, 12\.0.* no plan of"):
        read_header(tmp_path / "out" / "model.plan")


REFUSED: dict[str, tuple[Callable[[], bytes], dict[str, Any] | None, str]] = {
    "an attribute": (dilated_pool, None, "does not take an unnamed MaxPool"),
    "types": (mixed_integers, None, "add (Add) mixes Int64 and Int32"),
    "a range of another rank": (
        product,
        {"shapes": {"x": {"min": [1], "opt": [2], "max": [8]}}},
        "profiles do not fit the graph",
    ),
    "a fixed axis in a range": (product, moving(1, 8, width=5), "profiles do not fit the graph"),
    "values of a shape, the least above the usual": (
        expanded,
        {"shapes": {}, "values": {"shape": {"min": [8, 4], "opt": [2, 4], "max": [8, 4]}}},
        "profiles do not fit the graph",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_library_refuses_is_an_error_of_its_class(case: str, tmp_path: Path) -> None:
    graph, profile, says = REFUSED[case]
    found = built(tmp_path, graph(), profile)
    assert (found["error"], says in found["message"]) == ("EngineError", True), found
    assert not (tmp_path / "out" / "model.plan").exists()


def test_the_reason_of_the_parser_is_quoted(tmp_path: Path) -> None:
    assert "does not support dilations other than 1" in built(tmp_path, dilated_pool())["message"]


# The lint against the library: what differs, and why.
_DIFFERENT = {
    "takes the batch first": "built, with the attribute ignored: other numbers without a word",
    "convolves over more than two axes": "DeformConv is a plugin that RTX does not have",
    "pads one end more than the other": "the same",
    "attends over cached keys": "a build of Attention ends the process on a CPU (signal 11)",
    "gives its softmax a precision": "the same",
}
_CONTENTS = {"min": [1, 3, 4, 4], "opt": [2, 3, 4, 4], "max": [4, 3, 4, 4]}
"""Of an input that holds a shape."""


def profile_of(graph: onnx.ModelProto) -> dict[str, Any] | None:
    """A profile in which what varies is 1, 2 and 4; None for a graph whose shapes are all fixed."""
    shapes: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for entry in graph.graph.input:
        kind = entry.type.tensor_type
        dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]
        if None in dims:
            sizes = {"min": 1, "opt": 2, "max": 4}
            shapes[entry.name] = {key: [size if dim is None else dim for dim in dims] for key, size in sizes.items()}
        elif kind.elem_type == INT64 and dims == [len(_CONTENTS["min"])]:
            values[entry.name] = _CONTENTS
    return {"shapes": shapes, "values": values} if shapes or values else None


def refused_by_the_library(folder: Path, text: str) -> bool:
    """Whether the parser or the builder refuses a graph in ONNX's text form."""
    folder.mkdir()
    graph = small_graph(text, 23 if "Attention" in text else 21)
    found = built(folder, graph.SerializeToString(), profile_of(graph))
    is_built = (folder / "out" / "model.plan").exists()
    assert is_built or found["error"] in {"EngineError", "signal 11"}, found
    return not is_built


@pytest.mark.parametrize(("words", "beyond", "within"), LIMITS, ids=[words for words, _, _ in LIMITS])
def test_what_the_lint_refuses_is_what_the_library_refuses(
    words: str, beyond: str, within: str, tmp_path: Path
) -> None:
    found = (refused_by_the_library(tmp_path / "beyond", beyond), refused_by_the_library(tmp_path / "within", within))
    assert (found == (True, False)) is (words not in _DIFFERENT), (found, _DIFFERENT.get(words))
