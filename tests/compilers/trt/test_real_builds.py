"""Builds by a real parser and builder, those of TensorRT-RTX: what they refuse is named, and what they take is a plan.

They need no GPU; a plan is looked at by a runtime, which does. So a build that goes well ends where that begins.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from plansmith.compilers.trt.plan_header import read_header
from plansmith.compilers.trt.rtx import VERSION
from plansmith.errors import EngineError

from ...support.tensorrt.rtx import Library

pytestmark = [pytest.mark.services, pytest.mark.xdist_group("rtx")]

FLOAT, INT32, INT64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64


def model(nodes: list[Any], inputs: dict[str, tuple[int, list[Any]]], output: int = FLOAT, **weights: Any) -> bytes:
    """A graph with one output, y, of unknown shape."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, *signature) for name, signature in inputs.items()],
        [helper.make_tensor_value_info("y", output, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(proto.SerializeToString())


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


def suppressed() -> bytes:
    """What the library's parser takes, and its builder has no kernel for."""
    node = helper.make_node("NonMaxSuppression", ["boxes", "scores", "most"], ["y"], name="suppress")
    return model(
        [node], {"boxes": (FLOAT, [1, 6, 4]), "scores": (FLOAT, [1, 1, 6])}, INT64, most=np.array([3], np.int64)
    )


def moving(least: int, most: int, width: int = 4) -> dict[str, Any]:
    """A profile for x: shapes with these batches, of this width."""
    return {"shapes": {"x": {"min": [least, width], "opt": [least, width], "max": [most, width]}}}


def test_moving_batch_becomes_plan(library: Library, tmp_path: Path) -> None:
    """A graph with a moving batch becomes a plan."""
    outcome = library.build(tmp_path, product(), moving(1, 8))
    assert outcome.plan.stat().st_size > 1000, outcome
    assert outcome.error == "EnvironmentFault"
    assert "driver" in outcome.message


def test_rtx_engine_is_recognised(library: Library, tmp_path: Path) -> None:
    """An engine of RTX is named where a plan belongs."""
    outcome = library.build(tmp_path, product(), moving(1, 8))
    with pytest.raises(EngineError, match=rf"an engine of TensorRT-RTX {VERSION} for .* 8\.9, 12\.0.* no plan of"):
        read_header(outcome.plan)


def test_profiles_have_shapes_and_values(library: Library, tmp_path: Path) -> None:
    """Every profile has its shapes and the contents of shapes."""

    def contents(most: int) -> dict[str, Any]:
        return {"shapes": {}, "values": {"shape": {"min": [1, 4], "opt": [2, 4], "max": [most, 4]}}}

    outcome = library.build(tmp_path / "contents", expanded(), contents(8), contents(16))
    assert outcome.is_built, outcome
    outcome = library.build(tmp_path / "shapes", product(), moving(1, 8), moving(2, 16))
    (x,) = [line for line in outcome.layers.splitlines() if line.startswith(" Name: x,")]
    assert x.count("MinShape") == 2
    for profile in (
        "MinShape: [1,4], OptShape: [1,4], MaxShape: [8,4]",
        "MinShape: [2,4], OptShape: [2,4], MaxShape: [16,4]",
    ):
        assert profile in x


def test_fixed_graph_needs_no_profile(library: Library, tmp_path: Path) -> None:
    """A graph of fixed shapes needs no profile."""
    weights = np.ones((4, 3), np.float32)
    fixed = model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (FLOAT, [2, 4])}, w=weights)
    assert library.build(tmp_path, fixed).is_built


@pytest.mark.parametrize(
    ("graph", "profiles", "says"),
    [
        (product, [], "x vary, and there is no profile"),
        (product, [{"shapes": {}}], "profile profile 0 says nothing of the input x"),
        (expanded, [{"shapes": {}}], "profile profile 0 says nothing of the contents of the shape shape"),
    ],
)
def test_uncovered_input_refused(
    graph: Callable[[], bytes], profiles: list[dict[str, Any]], says: str, library: Library, tmp_path: Path
) -> None:
    """An input that no profile covers is refused and given no shape."""
    outcome = library.build(tmp_path, graph(), *profiles)
    assert (outcome.error, says in outcome.message, outcome.is_built) == ("EngineError", True, False), outcome


def test_unheard_build_ends(library: Library, tmp_path: Path) -> None:
    """A build tells what it does and ends when nobody listens."""
    outcome = library.build(tmp_path / "heard", product(), moving(1, 8))
    assert outcome.progress[:2] == ("reading the graph", "building")
    assert any(message.startswith("building: Building engine, ") for message in outcome.progress)
    outcome = library.build(tmp_path / "unheard", product(), moving(1, 8), stop_at="building: ")
    assert (outcome.error, outcome.is_built) == ("BrokenPipeError", False)


def test_a_deadline_ends_a_build(library: Library, tmp_path: Path) -> None:
    outcome = library.build(tmp_path, product(), moving(1, 8), seconds=0)
    assert (outcome.error, "within 0 minutes" in outcome.message) == ("EngineError", True), outcome
    assert list((tmp_path / "out").iterdir()) == []


REFUSED: dict[str, tuple[Callable[[], bytes], dict[str, Any] | None, str]] = {
    "an attribute": (dilated_pool, None, "does not take an unnamed MaxPool"),
    "no kernel": (suppressed, None, "has no kernel for suppress"),
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
def test_library_refusal_is_classified_error(case: str, library: Library, tmp_path: Path) -> None:
    """What the library refuses is an error of its class."""
    graph, profile, says = REFUSED[case]
    outcome = library.build(tmp_path, graph(), *([profile] if profile else []))
    assert (outcome.error, says in outcome.message) == ("EngineError", True), outcome
    assert not outcome.is_built


def test_parser_reason_is_quoted(library: Library, tmp_path: Path) -> None:
    """The reason of the parser is quoted."""
    assert "does not support dilations other than 1" in library.build(tmp_path, dilated_pool()).message


def test_emptied_timing_cache_is_said(library: Library, tmp_path: Path) -> None:
    """A timing cache that the library empties is said to be ignored."""
    cache = tmp_path / "timing.cache"
    assert library.attach(cache) == ("started empty", [])
    cache.write_bytes(b"of another time")
    message, warnings = library.attach(cache)
    assert message.startswith("ignored, as TensorRT cannot read it: ")
    assert "driver" in message
    assert len(warnings) == 1
