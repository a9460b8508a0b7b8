"""Calibrators: their limits by hand, exact counts, bounded memory, and padding that does not count."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from plansmith.compilers.precision import calibration as observing
from plansmith.compilers.precision.calibration import find_positions, largest_feed, observe, plan_walk, without_padding
from plansmith.compilers.precision.int8.format import (
    BINS,
    FP8,
    INT8,
    UINT8,
    Format,
    Histogram,
    Range,
    choose,
    entropy,
    expected_error,
    minmax,
    percentile,
)

from ....support.precision.half_graphs import Arrays, graph, samples


def test_minmax_covers_all_batches() -> None:
    """Minmax is the largest magnitude over all batches."""
    histogram = _histogram([[0.5, -3.0]], [[2.0]], [[0.0], [1.0]])
    assert (histogram.lowest, histogram.highest, minmax(histogram)) == (-3.0, 2.0, 3.0)


def test_counts_survive_growing_range() -> None:
    """Counts stay exact while the range grows."""
    rng = np.random.default_rng(0)
    batches = [rng.normal(size=(n, 7)).astype(np.float32) * scale for n, scale in ((3, 0.1), (50, 1), (9, 30))]
    histogram = _histogram(*batches)
    values = np.abs(np.concatenate([b.ravel() for b in batches]))
    expected, _ = np.histogram(values, bins=BINS, range=(0, histogram.width))
    assert histogram.counts.sum() == values.size
    assert np.abs(np.cumsum(expected) - np.cumsum(histogram.counts)).max() <= 1, "a value on an edge may go either way"
    assert histogram.largest > histogram.width / 2


def test_memory_per_tensor_is_constant() -> None:
    """A tensor costs the same memory however much streams by."""
    histogram = Histogram()
    rng = np.random.default_rng(0)
    for size in range(1, 200):
        histogram.update(rng.normal(size=(size, 3, 5)).astype(np.float32) * size)
    assert histogram.counts.shape == (BINS,)


def test_percentile_drops_share_beyond() -> None:
    """Percentile leaves out the share beyond it."""
    histogram = _histogram(np.arange(1, 10_001))
    width = histogram.width / BINS
    assert percentile(histogram, 99.0) == pytest.approx(9_900, abs=2 * width)
    assert percentile(histogram, 50.0) == pytest.approx(5_000, abs=2 * width)


def test_entropy_drops_lonely_outlier() -> None:
    """Entropy cuts off a lonely outlier and keeps a full range."""
    rng = np.random.default_rng(0)
    bell = rng.normal(size=100_000)
    assert 2.5 < entropy(_histogram(np.append(bell, 40.0))) < 10
    assert entropy(_histogram(rng.uniform(-1, 1, size=100_000))) > 0.95


def test_relu_zeros_leave_entropy_limit() -> None:
    """Zeros behind a ReLU do not move the entropy limit."""
    values = np.random.default_rng(0).gamma(2.0, size=50_000)
    zeros = np.zeros(500_000)
    assert entropy(_histogram(np.append(values, zeros))) == entropy(_histogram(values)) > 5


@pytest.mark.parametrize("calibration", ["minmax", "percentile", "entropy", "auto"])
def test_zero_tensor_scale_gives_zeros(calibration: str) -> None:
    """A tensor of zeros has a scale that gives zeros."""
    value_range = choose(_histogram(np.zeros(10)), calibration, INT8)  # type: ignore[arg-type]
    scale, zero = INT8.scale(value_range.low, value_range.high)
    assert scale > 0
    assert zero == 0


def test_auto_saturates_for_halved_error() -> None:
    """Auto saturates only where it halves the error."""
    bell = np.random.default_rng(0).normal(size=2_000_000)
    assert choose(_histogram(bell[:20_000]), "auto", INT8).how == "minmax"
    outlier = _histogram(np.append(bell, 30.0))
    value_range = choose(outlier, "auto", INT8)
    assert value_range.how != "minmax"
    assert value_range.high < 10
    everything = choose(outlier, "minmax", INT8)
    assert 2 * expected_error(outlier, value_range, INT8) < expected_error(outlier, everything, INT8)


@pytest.mark.parametrize("form", [INT8, FP8], ids=["int8", "fp8"])
def test_expected_error_is_rounding(form: Format) -> None:
    """The expected error is that of rounding."""
    values = np.random.default_rng(0).normal(size=200_000).astype(np.float32)
    value_range = Range(-2.0, 2.0, "minmax")
    scale, _ = form.scale(value_range.low, value_range.high)
    assert scale == 2.0 / form.largest
    rounded = form.rounded(values.clip(value_range.low, value_range.high), scale)
    assert expected_error(_histogram(values), value_range, form) == pytest.approx(
        np.square(values - rounded).mean(), rel=0.01
    )


def test_unsigned_bytes_span_full_range() -> None:
    """Unsigned bytes reach from the lowest to the highest value."""
    assert UINT8.scale(-1.0, 3.0) == (4 / 255, 64)
    assert UINT8.scale(0.0, 3.0) == (3 / 255, 0)


def test_padding_values_left_out() -> None:
    """Values at padding are left out whether positions are one axis or two."""
    mask = np.array([[True, False, True]])
    apart = np.arange(6, dtype=np.float32).reshape(1, 3, 2)
    assert without_padding(apart, mask, "apart").tolist() == [[0, 1], [4, 5]]
    assert without_padding(apart.reshape(3, 2), mask, "as one").tolist() == [[0, 1], [4, 5]]
    scores = np.zeros((1, 4, 3, 3), np.float32)
    assert without_padding(scores, mask, "none").shape == scores.shape


@pytest.mark.parametrize("length", [2, 3, 4, 8])
def test_heads_are_not_positions(length: int) -> None:
    """All batches have one length, so that their sizes alone tell nothing."""
    text = """(float[N, S, 8] x, int64[N, S] mask) => (float[N, S, 8] y) {
        flat = Reshape (x, rows)
        split = Reshape (x, heads)
        turned = Transpose <perm = [0, 2, 1, 3]> (split)
        y = Relu (x)
        few = Expand (x, again)
        pooled = ReduceMean <keepdims = 0> (few, second)
        table = Add (stored, one)
    }"""
    model = graph(
        text,
        rows=np.array([-1, 8]),
        heads=np.array([0, 0, length, 8 // length if 8 % length == 0 else 8]),
        again=np.array([1, 1, 8]),
        second=np.array([1]),
        stored=np.zeros((length, 8), np.float32),
        one=np.float32(1),
    )
    if 8 % length:
        next(n for n in model.graph.node if n.name == "split").input[0] = "wide"
        widened = graph("(float[N, S, 8] x) => (float[N, S, M] wide) { wide = Concat <axis = -1> (x, x, x) }")
        model.graph.node.insert(0, widened.graph.node[0])
    mask = np.ones((2, length), np.int64)
    feed: Arrays = {"x": np.ones((2, length, 8), np.float32), "mask": mask}
    names = ["flat", "turned", "y", "pooled", "table"]
    walk = plan_walk(model, feed, names, "mask")
    expected = {"flat": "as one", "turned": "none", "y": "apart", "pooled": "none", "table": "none"}
    assert walk.positions == expected
    assert set(plan_walk(model, feed, names, None).positions.values()) == {"none"}


def test_fixed_length_graph_tells_it() -> None:
    """A graph that takes only one length is told by it."""
    text = "(float[N, S, 2] x, int64[N, S] mask) => (float[N, 4, 2] y) { y = Reshape (x, four) }"
    feed: Arrays = {"x": np.ones((2, 4, 2), np.float32), "mask": np.ones((2, 4), np.int64)}
    walk = plan_walk(graph(text, four=np.array([-1, 4, 2])), feed, ["y"], "mask")
    assert walk.positions == {"y": "apart"}


def test_single_position_batches_are_ambiguous() -> None:
    """Batches of one position do not tell what has a row for each position."""
    model = graph(
        "(float[N, S, 2] x, int64[N, S] mask) => (float[N, 2] y) { y = ReduceMax <keepdims = 0> (x, second) }",
        second=np.array([1]),
    )
    feeds: list[Arrays] = [{"x": np.ones((4, s, 2), np.float32), "mask": np.ones((4, s), np.int64)} for s in (1, 2)]
    assert find_positions(model, feeds, ["y"], "mask") == {"y": "none"}


def test_pass_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a pass holds is bounded by bytes and every tensor is still seen in full."""
    text = "(float[N, S, 64] x) => (float[N, S, 64] c) { a = Relu (x)  b = Mul (a, two)  c = Mul (b, two) }"
    feeds: list[Arrays] = [{"x": np.full((n, s, 64), n, np.float32)} for n, s in ((5, 2), (3, 8))]
    cases, model = samples(tmp_path, *feeds), graph(text, two=np.float32(2))
    sample = 8 * 64 * 4

    def walked(budget: int) -> tuple[int, list[list[str]], list[float]]:
        monkeypatch.setattr(observing, "BYTES_AT_ONCE", budget)
        walk = plan_walk(model, largest_feed(case.feed for case in cases), ["a", "b", "c"], None)
        histograms = {name: Histogram() for name in "abc"}
        observe(model, cases, histograms, mask_input=None)
        assert {int(h.counts.sum()) for h in histograms.values()} == {5 * 2 * 64 + 3 * 8 * 64}
        return walk.rows, [list(names) for names in walk.passes], [h.highest for h in histograms.values()]

    assert walked(1 << 30) == (16, [["a", "b", "c"]], [5.0, 10.0, 20.0])
    assert walked(6 * sample) == (2, [["a", "b", "c"]], [5.0, 10.0, 20.0])
    assert walked(2 * sample) == (1, [["a", "b"], ["c"]], [5.0, 10.0, 20.0])
    assert walked(1) == (1, [["a"], ["b"], ["c"]], [5.0, 10.0, 20.0])


@pytest.mark.parametrize("size", [1e-41, 1e-45, 3e-39])
def test_subnormal_numbers_count_as_zeros(size: float) -> None:
    """Numbers below the digits of FP32 count as zeros."""
    histogram = _histogram([size, -size, 0.0])
    assert (histogram.largest, histogram.counts.sum()) == (0.0, 0)
    histogram.update(np.array([size, 2.0, -1e-37], np.float32))
    assert (histogram.largest, histogram.counts.sum()) == (2.0, 2)
    small = _histogram([1.2e-38, 5e-38])
    assert small.counts.sum() == 2
    assert small.largest == pytest.approx(5e-38)


def test_calibration_covers_all_sizes(tmp_path: Path) -> None:
    """Calibration walks through batches of all sizes and lengths in small pieces."""
    doubled = graph(
        "(float[N, S, 2] x, int64[N, S] mask) => (float[N, S, 2] y) { y = Mul (x, two) }", two=np.float32(2)
    )
    feeds: list[Arrays] = []
    for batch, length in ((40, 3), (1, 11), (5, 1)):
        mask = np.ones((batch, length), np.int64)
        mask[:, -1] = length == 1
        x = np.where(mask[..., None], 1.0 + np.arange(batch)[:, None, None], 1e6).repeat(2, axis=2)
        feeds.append({"x": x.astype(np.float32), "mask": mask})
    histogram, shapes = Histogram(), _Shapes()
    observe(doubled, samples(tmp_path, *feeds), {"y": histogram}, mask_input="mask", of_all={"y": shapes})
    assert histogram.highest == 80.0
    assert histogram.counts.sum() == 2 * sum(np.count_nonzero(f["mask"]) for f in feeds)
    assert shapes.shapes == [(16, 3, 2), (16, 3, 2), (8, 3, 2), (1, 11, 2), (5, 1, 2)]


class _Shapes:
    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def update(self, values: np.ndarray) -> None:
        self.shapes.append(values.shape)


def _histogram(*batches: object) -> Histogram:
    histogram = Histogram()
    for batch in batches:
        histogram.update(np.asarray(batch, np.float32))
    return histogram
