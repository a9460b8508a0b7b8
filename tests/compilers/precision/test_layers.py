"""Where the error comes in: a graph beside the same graph with one spoilt node."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from plansmith.compilers.precision.search import BEST_DB, WORST_DB, compare_layers, decibels, rank_causes

NAMES = ("first", "second", "third", "fourth")
FEEDS = [{"x": np.random.default_rng(seed).standard_normal((4, 8)).astype(np.float32)} for seed in range(2)]


def chain(weights: dict[str, NDArray[np.float32]]) -> onnx.ModelProto:
    """x through one product a name, each followed by a Relu, to y."""
    nodes, last = [], "x"
    for name in NAMES:
        nodes += [
            onnx.helper.make_node("MatMul", [last, f"{name}_w"], [f"{name}_out"], name=name),
            onnx.helper.make_node("Relu", [f"{name}_out"], [f"{name}_relu"], name=f"{name}_r"),
        ]
        last = f"{name}_relu"
    nodes.append(onnx.helper.make_node("Identity", [last], ["y"], name="end"))

    def form(name: str) -> onnx.ValueInfoProto:
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", 8])

    graph = onnx.helper.make_graph(
        nodes,
        "chain",
        [form("x")],
        [form("y")],
        [onnx.numpy_helper.from_array(value, f"{name}_w") for name, value in weights.items()],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)


@pytest.fixture
def weights() -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(7)
    return {name: rng.standard_normal((8, 8)).astype(np.float32) for name in NAMES}


def spoilt(weights: dict[str, NDArray[np.float32]], name: str, share: float) -> onnx.ModelProto:
    noise = np.random.default_rng(9).standard_normal((8, 8)).astype(np.float32)
    return chain({**weights, name: weights[name] + share * noise})


def test_same_graph_has_no_error(weights: dict[str, NDArray[np.float32]]) -> None:
    """The same graph has no error anywhere."""
    errors = compare_layers(chain(weights), chain(weights), FEEDS, dict.fromkeys(NAMES, True))
    assert [(e.node, e.op_type, e.lowered) for e in errors] == [(name, "MatMul", True) for name in NAMES]
    assert all(e.sqnr_db > 120 for e in errors)


@pytest.mark.parametrize("guilty", NAMES)
def test_guilty_node_ranked_first(weights: dict[str, NDArray[np.float32]], guilty: str) -> None:
    """The node that brings the error in is ranked first."""
    model = chain(weights)
    errors = compare_layers(model, spoilt(weights, guilty, 0.1), FEEDS, dict.fromkeys(NAMES, True))
    assert rank_causes(model, errors, NAMES)[0].node == guilty
    behind = {e.node: e.sqnr_db for e in errors}
    assert all(behind[name] > 120 for name in NAMES[: NAMES.index(guilty)])
    assert 10 < behind[guilty] < 30


def test_padding_is_no_error() -> None:
    """The lowered graph answers as it should but for the last two positions of the second sample."""
    graphs = []
    for cut in (1e9, 1.0):
        text = f"""<ir_version: 9, opset_import: ["": 18]>
            g (float[b, s, 8] x, int64[b, s] mask) => (float[b, s, 8] y) {{
                low = Constant <value = float {{-{cut}}}> ()
                high = Constant <value = float {{{cut}}}> ()
                y = Clip (x, low, high)
            }}"""
        graphs.append(onnx.parser.parse_model(text))
    whole, cut_off = graphs
    for graph in graphs:
        graph.graph.node[-1].name = "cut"
    x = np.random.default_rng(0).uniform(-0.9, 0.9, (2, 4, 8)).astype(np.float32)
    x[1, 2:] *= 50
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0]])
    feeds = [{"x": x, "mask": mask}]
    (comparison,) = compare_layers(whole, cut_off, feeds, {"cut": True})
    (masked,) = compare_layers(whole, cut_off, feeds, {"cut": True}, mask_input="mask")
    assert comparison.sqnr_db < 20
    assert masked.sqnr_db == BEST_DB


def test_moved_channel_scale_is_no_error(weights: dict[str, NDArray[np.float32]]) -> None:
    """A channel's scale that moved into the next layer is no error."""
    scale = np.linspace(0.5, 4, 8, dtype=np.float32)
    moved = chain({**weights, "second": weights["second"] * scale, "third": weights["third"] / scale[:, None]})
    errors = compare_layers(chain(weights), moved, FEEDS, dict.fromkeys(NAMES, True))
    assert all(e.sqnr_db > 110 for e in errors)


def test_overflow_ranked_first(weights: dict[str, NDArray[np.float32]]) -> None:
    """An overflow is ranked before everything else."""
    model = chain(weights)
    broken = spoilt({**weights, "first": weights["first"] + np.float32(0.3)}, "third", np.inf)
    errors = compare_layers(model, broken, FEEDS, dict.fromkeys(NAMES, True))
    assert {e.node: e.sqnr_db for e in errors}["third"] == WORST_DB
    assert rank_causes(model, errors, NAMES)[0].node == "third"


def test_vanished_node_ranked_last(
    weights: dict[str, NDArray[np.float32]],
) -> None:
    """A node that the lowered graph no longer has is left out and ranked last."""
    model, lowered = chain(weights), chain(weights)
    node = next(n for n in lowered.graph.node if n.name == "second")
    following = next(n for n in lowered.graph.node if n.name == "second_r")
    node.output[0] = following.input[0] = "renamed"
    errors = compare_layers(model, lowered, FEEDS, dict.fromkeys(NAMES, True))
    assert [e.node for e in errors] == ["first", "third", "fourth"]
    assert rank_causes(model, errors, NAMES)[-1].node == "second"


def test_decibels_are_bounded() -> None:
    """Decibels end where nothing is to be told apart."""
    assert decibels(1.0, 0.01) == pytest.approx(20)
    assert (decibels(1.0, 0.0), decibels(0.0, 1.0), decibels(1.0, np.inf)) == (BEST_DB, WORST_DB, WORST_DB)
