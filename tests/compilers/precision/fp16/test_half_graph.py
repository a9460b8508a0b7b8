"""A graph in sixteen bits: its types, its casts, its interface, and what ONNX Runtime makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from plansmith.compilers.onnxrt import open_session
from plansmith.records.model import Precision

from ....support.precision.half_graphs import casts, graph, lowering, normalised, run

X = np.random.default_rng(3).normal(size=(4, 8)).astype(np.float32)
WEIGHTS: dict[str, Any] = {"w": np.random.default_rng(4).normal(size=(8, 8)).astype(np.float32)}
CHAIN = """(float[N, 8] x) => (float[N, 8] y) {
    a = MatMul (x, w) b = Relu (a) c = Identity (b) d = MatMul (c, w) y = Tanh (d)
}"""


def types(model: onnx.ModelProto) -> dict[str, int]:
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    values = (*inferred.graph.value_info, *inferred.graph.input, *inferred.graph.output)
    return {v.name: v.type.tensor_type.elem_type for v in values}


@pytest.mark.parametrize(("precision", "element"), [(Precision.FP16, 10), (Precision.BF16, 16)])
def test_interior_lowered_with_two_casts(precision: Precision, element: int, tmp_path: Path) -> None:
    """Everything between input and output is lowered with two casts."""
    method = lowering(graph(CHAIN, **WEIGHTS), tmp_path, {"x": X}, precision=precision)
    lowered = method.lower(())
    dtypes = types(lowered)
    assert (dtypes["x"], dtypes["y"]) == (1, 1)
    assert {dtypes[name] for name in "abcd"} == {element}
    assert [t.data_type for t in lowered.graph.initializer] == [element], "one copy, shared"
    assert len(casts(lowered)) == 2
    assert method.lowerable == ("a", "b", "c", "d", "y")
    onnx.checker.check_model(lowered, full_check=True)


def test_edges_lowered_when_asked(tmp_path: Path) -> None:
    """Inputs and outputs are lowered only when asked."""
    method = lowering(graph(CHAIN, **WEIGHTS), tmp_path, {"x": X}, lower_io=True)
    lowered = method.lower(())
    assert {v.type.tensor_type.elem_type for v in (*lowered.graph.input, *lowered.graph.output)} == {10}
    assert casts(lowered) == []
    half = run(lowered, tmp_path, {"x": X.astype(np.float16)})[0]
    twin = run(method.runnable(lowered), tmp_path, {"x": X})[0]
    assert (half.dtype.name, twin.dtype.name) == ("float16", "float32")
    np.testing.assert_allclose(half.astype(np.float32), twin, atol=0.01)


def test_kept_node_takes_movers_along(tmp_path: Path) -> None:
    """A node that is kept takes along what moves numbers to it."""
    method = lowering(graph(CHAIN, **WEIGHTS), tmp_path, {"x": X})
    lowered = method.lower({"b", "d"})
    dtypes = types(lowered)
    assert [dtypes[name] for name in "abcd"] == [10, 1, 1, 1]
    assert len(casts(lowered)) == 4
    assert sorted(t.data_type for t in lowered.graph.initializer) == [1, 10], "both products read their own weights"


def test_spec_kept_nodes_stay_fp32(tmp_path: Path) -> None:
    """Nodes that the spec keeps stay FP32."""
    method = lowering(graph(CHAIN, **WEIGHTS), tmp_path, {"x": X}, keep=["[bd]", "x"])
    assert method.high_reasons == {"b": "the spec keeps '[bd]'", "d": "the spec keeps '[bd]'"} | {
        "c": "it only hands numbers from FP32 to FP32"
    }
    with pytest.raises(ValueError, match="not among the nodes that are lowered: b"):
        method.lower({"b"})


def test_branches_keep_their_types(tmp_path: Path) -> None:
    """Branches keep their types and take FP32 from outside."""
    model = graph(
        """(float[N, 8] x, bool flag) => (float[N, 8] y) {
            a = MatMul (x, w)
            chosen = If (flag) <
                then_branch = yes () => (float[N, 8] p) { p = Mul (a, w0) },
                else_branch = no () => (float[N, 8] q) { q = Neg (a) }
            >
            y = Relu (chosen)
        }""",
        w0=np.float32(3),
        **WEIGHTS,
    )
    feeds = [{"x": X, "flag": np.array(flag)} for flag in (True, False)]
    method = lowering(model, tmp_path, *feeds)
    assert method.high_reasons == {"chosen": "it holds a subgraph, which stays as it is"}
    lowered = method.lower(())
    for candidate in (lowered, method.runnable(lowered)):
        for feed in feeds:
            np.testing.assert_allclose(
                run(candidate, tmp_path, feed)[0], run(model, tmp_path, feed)[0], atol=0.05, rtol=0.01
            )


def test_shared_output_is_fp32_outside(tmp_path: Path) -> None:
    """An output that nodes take too is FP32 outside of the graph and lowered inside."""
    model = graph("(float[N, 8] x) => (float[N, 8] a, float[N, 8] y) { a = MatMul (x, w) y = Relu (a) }", **WEIGHTS)
    method = lowering(model, tmp_path, {"x": X})
    lowered = method.lower(())
    assert method.lowerable == ("a", "y")
    assert len(casts(lowered)) == 3
    for candidate in (lowered, method.runnable(lowered)):
        for mine, theirs in zip(run(candidate, tmp_path, {"x": X}), run(model, tmp_path, {"x": X}), strict=True):
            np.testing.assert_allclose(mine, theirs, atol=0.05)


def test_unsupported_operators_stay_fp32(tmp_path: Path) -> None:
    """Operators and inputs that know no FP16 stay FP32."""
    text = """(float[1, 1, 4, 4] x) => (float[1, 1, 8, 8] y, float[M] steps) {
        inner = Neg (x)
        large = Resize <mode = "linear"> (inner, , scales)
        y = Relu (large)
        steps = Range (zero, limit, one)
    }"""
    scales = np.array([1, 1, 2, 2], np.float32)
    model = graph(text, scales=scales, zero=np.float32(0), one=np.float32(1), limit=np.float32(5))
    method = lowering(model, tmp_path, {"x": X.reshape(2, 1, 4, 4)[:1]})
    assert method.high_reasons == {"steps": "Range has no FP16 form in opset 18"}
    assert method.lowerable == ("inner", "large", "y")
    lowered = method.lower(())
    assert {t.name: t.data_type for t in lowered.graph.initializer}["scales"] == 1
    onnx.checker.check_model(lowered, full_check=True)


def test_custom_operator_stays_fp32(tmp_path: Path) -> None:
    """An operator of somebody else stays FP32."""
    model = graph(
        "(float[N, 8] x) => (float[N, 8] y) { a = com.microsoft.QuickGelu (x) b = Neg (a) y = MatMul (b, w) }",
        domains=', "com.microsoft": 1',
        **WEIGHTS,
    )
    method = lowering(model, tmp_path, {"x": X})
    assert "com.microsoft.QuickGelu is no operator of ONNX" in method.high_reasons["a"]
    assert method.lowerable == ("b", "y")
    method.lower(())


def test_shape_asked_of_existing_tensor(tmp_path: Path) -> None:
    """A shape is asked of what there is."""
    model = graph(
        """(float[N, 8] x) => (float[N, 8] y) {
            a = MatMul (x, w) size = Shape (a) flat = Reshape (a, minus) back = Reshape (flat, size) y = Relu (back)
        }""",
        minus=np.array([-1]),
        **WEIGHTS,
    )
    method = lowering(model, tmp_path, {"x": X})
    assert len(casts(method.lower(()))) == 2
    assert "size" not in {*method.high_reasons, *method.lowerable}


def test_integers_for_fp32_not_rounded(tmp_path: Path) -> None:
    """Whole numbers that FP32 nodes want are not rounded on the way."""
    model = graph(
        """(int64[N, 8] ids, float[N, 8] x) => (float[N, 8] y) {
            place = Cast <to = 1> (ids) angle = Mul (place, tenth) wave = Sin (angle) both = Mul (wave, place)
            y = Add (both, x)
        }""",
        tenth=np.float32(0.1),
    )
    feed: dict[str, Any] = {"ids": 5000 + np.arange(32).reshape(4, 8), "x": X}
    method = lowering(model, tmp_path, feed)
    assert "its angle reaches 503" in method.high_reasons["wave"]
    assert {"angle", "place"} <= set(method.high_reasons)
    answer = run(method.runnable(method.lower(())), tmp_path, feed)[0]
    np.testing.assert_allclose(answer, run(model, tmp_path, feed)[0], rtol=0.002, atol=4)


def test_bf16_graph_gets_newer_opset(tmp_path: Path) -> None:
    """A graph for BF16 is brought to the opset that has it."""
    image = np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype(np.float32)
    text = "(float[N, 3, 8, 8] x) => (float[N, 4, 8, 8] y) { a = Conv <pads = [1, 1, 1, 1]> (x, kernel) y = Relu (a) }"
    model = graph(text, kernel=np.random.default_rng(1).normal(size=(4, 3, 3, 3)).astype(np.float32))
    method = lowering(model, tmp_path, {"x": image}, precision=Precision.BF16)
    assert (method.lowerable, method.settings["opset"]) == (("a", "y"), "22")
    assert method.not_validated[0].startswith("the BF16 kernels")
    lowered = method.lower(())
    onnx.checker.check_model(lowered, full_check=True)
    exact, rounded = run(model, tmp_path, {"x": image})[0], run(method.runnable(lowered), tmp_path, {"x": image})[0]
    np.testing.assert_allclose(rounded, exact, rtol=0.02, atol=0.1)
    assert not (rounded.view(np.uint32) & 0xFFFF).any(), "the last sixteen bits of every number are zero"


@pytest.mark.parametrize("rewrites", ["none", "basic", "all"])
def test_twin_rounding_survives_optimisation(rewrites: Any, tmp_path: Path) -> None:
    """The twin's rounding survives what ONNX Runtime does to graphs."""
    model = graph("(float[N, 8] x) => (float[N, 8] y) { a = Add (x, one) y = Sub (a, one) }", one=np.float32(1))
    method = lowering(model, tmp_path, {"x": X}, precision=Precision.BF16)
    path = tmp_path / "twin.onnx"
    onnx.save(method.runnable(method.lower(())), path)
    small = np.full((1, 8), 1e-3, np.float32)
    assert open_session(path, rewrites=rewrites).run(None, {"x": small})[0].tolist() == [[0.0] * 8]


def test_unnamed_nodes_named_once(tmp_path: Path) -> None:
    """Names of nodes are made up once where there are none."""
    model = normalised()
    for node in model.graph.node:
        node.name = ""
    method = lowering(model, tmp_path, {"x": np.random.default_rng(0).normal(size=(2, 64)).astype(np.float32)})
    assert len(set(method.lowerable)) == 8
    method.lower(method.lowerable[2:4])
