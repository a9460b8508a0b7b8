"""Outliers of activations go into weights: answers stay, errors of INT8 fall, and where it folds it is free."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from plansmith.compilers.precision.graph import Graph
from plansmith.compilers.precision.int8 import onnxruntime_methods, smoothquant, tensorrt_method
from plansmith.compilers.precision.int8.format import INT8, UINT8
from plansmith.compilers.precision.int8.nodes import Weighted, find_weighted
from plansmith.compilers.precision.int8.smoothquant import MARGIN, Channels, prepare, smooth
from plansmith.config.engine_options import LoweringOptions
from plansmith.data.reference import StoredCases

from ....support.precision.half_graphs import Arrays, graph, run, samples
from ....support.precision.int8_graphs import Weights, constants, encoder, tokens

NORMALISED = """(float[N, S, 64] x, int64[N, S] mask) => (float[N, S, 64] y) {
    n = LayerNormalization <axis = -1> (x, gamma, beta)
    one = MatMul (n, w1)
    two = MatMul (n, w2)
    sum = Add (one, two)
    y = Softplus (sum)
}"""


def test_outlier_channel_folded_into_normalisation(tmp_path: Path) -> None:
    """A channel of outliers is folded into the normalisation that makes it."""
    model, cases = _outlier(), _noise(tmp_path)
    smoothed = smooth(prepare(model), _products(model), cases, INT8, mask_input=None)
    assert [n.op_type for n in smoothed.model.graph.node] == [n.op_type for n in model.graph.node]
    assert "1 by the normalisation before it" in smoothed.how
    feed = next(iter(cases)).feed
    (before,), (after,) = run(model, tmp_path, feed), run(smoothed.model, tmp_path, feed)
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-4)
    gamma = constants(smoothed.model)["gamma_smooth"]
    assert gamma.max() / np.median(gamma) < 30 < constants(model)["gamma"].max() / 2


def test_migrated_outliers_improve_int8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """INT8 is much nearer with the outliers migrated."""
    model, cases = _outlier(), _noise(tmp_path)
    feed = next(iter(cases)).feed
    (exact,) = run(model, tmp_path, feed)

    def error() -> float:
        (method,) = tensorrt_method.methods(model, cases, LoweringOptions())
        (output,) = run(method.lower(()), tmp_path, feed)
        return float(np.square(output - exact).mean())

    migrated = error()
    monkeypatch.setattr(smoothquant, "WORTH", 0.0)  # nothing leaves less than no error
    assert 100 * migrated < error()


def test_residual_input_divided_by_mul(tmp_path: Path) -> None:
    """What a residual sum takes too is divided by a Mul for the products alone."""
    text = NORMALISED.replace("y = Softplus (sum)", "z = Softplus (sum)  y = Add (z, n)")
    model, cases = _outlier(text), _noise(tmp_path)
    smoothed = smooth(prepare(model), _products(model), cases, UINT8, mask_input=None)
    assert "1 by a Mul" in smoothed.how
    index = Graph(smoothed.model)
    assert [n.op_type for n in index.consumers("n")] == ["Mul", "Add"]
    feed = next(iter(cases)).feed
    (before,), (after,) = run(model, tmp_path, feed), run(smoothed.model, tmp_path, feed)
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-4)


def test_context_outliers_go_into_values(tmp_path: Path) -> None:
    """Outliers of an attention's context go into the columns of its values."""
    model, cases = encoder(), tokens(tmp_path)
    weights = {t.name: t for t in model.graph.initializer}
    wv = onnx.numpy_helper.to_array(weights["wv"]).copy()
    wv[:, 5] *= 200
    weights["wv"].CopyFrom(onnx.numpy_helper.from_array(wv, "wv"))
    smoothed = smooth(prepare(model), _products(model), cases, INT8, mask_input="attention_mask")
    assert "1 by the columns of the value projection" in smoothed.how
    columns = np.abs(constants(smoothed.model)["wv"]).max(axis=0)
    assert columns[5] < 30 * np.median(columns)
    feed = next(iter(cases)).feed
    for before, after in zip(run(model, tmp_path, feed), run(smoothed.model, tmp_path, feed), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "divisor",
    [np.float32(np.nan), np.float32(0), np.float32(3)],
    ids=["not a number", "infinite", "wrong"],
)
@pytest.mark.parametrize("wrong_from", [0, 5], ids=["first", "longest"])
def test_answer_changing_migration_left_out(
    divisor: np.float32, wrong_from: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A migration that changes the answers of the first or the longest case is left out."""
    cases = _noise(tmp_path, lengths=(5, 4, 12))
    real = smoothquant.migrate

    def spoil(index: Graph, migrations: Any) -> dict[str, str]:
        """Divide all positions from one on by the wrong number."""
        places = real(index, migrations)
        factors = np.ones((1, 64, 1), np.float32)
        factors[:, wrong_from:] = divisor
        index.model.graph.initializer.append(onnx.numpy_helper.from_array(factors, "factors"))
        index.model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "start"))
        index.model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "axis"))
        last = index.model.graph.node[-1]
        last.output[0] = "right"
        make = onnx.helper.make_node
        index.model.graph.node.extend(
            [
                make("Shape", ["right"], ["length"], start=1, end=2),
                make("Slice", ["factors", "start", "length", "axis"], ["some"]),
                make("Div", ["right", "some"], ["y"]),
            ]
        )
        return places

    monkeypatch.setattr(smoothquant, "migrate", spoil)
    model = _outlier()
    smoothed = smooth(prepare(model), _products(model), cases, INT8, mask_input=None)
    assert smoothed.how.startswith("left out: the smoothed FP32 graph differs by ")
    assert smoothed.model.graph.node == prepare(model).graph.node
    assert ("inf" in smoothed.how) == (divisor != 3)


def test_plain_activations_left_alone(tmp_path: Path) -> None:
    """Activations without outliers are left alone."""
    model = _outlier(factor=1.0)
    smoothed = smooth(prepare(model), _products(model), _noise(tmp_path), UINT8, mask_input=None)
    assert smoothed.how == "no outliers worth migrating"
    assert smoothed.model.graph.node == model.graph.node


def test_padding_values_are_clipped(tmp_path: Path) -> None:
    """What only padding reaches is clipped before scales per request are taken."""
    cases = _noise(tmp_path, at_padding=50.0)
    text = NORMALISED.replace("LayerNormalization <axis = -1> (x, gamma, beta)", "Mul (x, gamma)")
    model = _outlier(text, factor=1.0)
    methods = [
        onnxruntime_methods.methods(model, cases, LoweringOptions(quantisation="dynamic"), mask_input=mask)[0]
        for mask in ("mask", None)
    ]
    clipped, plain = (method.lower(()) for method in methods)
    (clip,) = [n for n in clipped.graph.node if n.op_type == "Clip"]
    assert not [n for n in plain.graph.node if n.op_type == "Clip"]
    largest = max(np.abs(case.feed["x"][case.feed["mask"] == 1]).max() for case in cases)
    assert constants(clipped)[clip.input[2]] == pytest.approx(MARGIN * largest, rel=0.2)
    case = next(iter(cases))
    (exact,) = run(model, tmp_path, case.feed)
    real = case.feed["mask"] == 1
    errors = [np.square(run(m, tmp_path, case.feed)[0] - exact)[real].mean() for m in (clipped, plain)]
    assert 20 * errors[0] < errors[1]


def test_silent_channel_not_blown_up() -> None:
    """A channel that calibration never heard is not blown up."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 64)).astype(np.float32)
    rows[:, 5] = 0.0
    rows[:, 11] *= 300
    channels = Channels(quota=200)
    channels.update(rows)
    weight = Weights().normal(64, 64)
    model = graph("(float[N, 64] x) => (float[N, 64] y) { y = MatMul (x, w) }", w=weight)
    index = Graph(model)
    groups = smoothquant.find_groups(index, find_weighted(index)[0])
    (migration,) = smoothquant.find_migrations(index, groups, {"x": channels}, UINT8)
    others = np.delete(migration.divisors, [5, 11])
    assert migration.divisors[5] > others.min() / 25
    assert migration.divisors[11] > 10 * others.max()


def test_kept_rows_bounded_and_mixed() -> None:
    """Rows that are kept are bounded and drawn from every batch."""
    channels = Channels(quota=3)
    for batch in range(10):
        channels.update(np.full((4 + batch, 5, 8), float(batch), np.float32))
    assert channels.rows.shape == (30, 8)
    assert set(channels.rows[:, 0]) == set(range(10))
    assert channels.largest.tolist() == [9.0] * 8


def _outlier(text: str = NORMALISED, factor: float = 300.0) -> onnx.ModelProto:
    """Two products behind one normalisation, one of whose channels is large."""
    gamma = np.ones(64, np.float32)
    gamma[11] = factor
    drawn = Weights()
    w1, w2 = drawn.normal(64, 64), drawn.normal(64, 64)
    w1[11] /= factor
    w2[11] /= factor
    weights: dict[str, Any] = {"gamma": gamma, "w1": w1, "w2": w2}
    if "beta" in text:
        weights["beta"] = gamma * 0
    return graph(text, **weights)


def _products(model: onnx.ModelProto) -> list[Weighted]:
    return find_weighted(Graph(prepare(model)))[0]


def _noise(folder: Path, at_padding: float = 1.0, lengths: Sequence[int] = (12, 6)) -> StoredCases:
    rng = np.random.default_rng(5)
    feeds: list[Arrays] = []
    for batch, length in zip((4, 3, 2), lengths, strict=False):
        mask = np.ones((batch, length), np.int64)
        mask[:, -2:] = 0
        x = rng.normal(size=(batch, length, 64)) * np.where(mask, 1.0, at_padding)[..., None]
        feeds.append({"x": x.astype(np.float32), "mask": mask})
    return samples(folder, *feeds)
