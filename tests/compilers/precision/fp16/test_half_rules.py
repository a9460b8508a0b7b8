"""What cannot be lowered to sixteen bits is found by measuring, stays FP32, and says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plansmith.compilers.precision.fp16.format import number
from plansmith.errors import ExportError
from plansmith.records.model import Precision

from ....support.precision.half_graphs import attention, attention_feed, casts, graph, lowering, normalised, run

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test draws the same numbers, whichever ran before."""
    monkeypatch.setitem(globals(), "RNG", np.random.default_rng(0))


ROWS = RNG.normal(size=(8, 64)).astype(np.float32)


def test_normalisation_overflow_is_avoided(tmp_path: Path) -> None:
    """An overflow in a written-out normalisation is found, named and avoided."""
    model, feed = normalised(), {"x": 300 * ROWS}
    method = lowering(model, tmp_path, feed)
    reach = float(np.square(feed["x"] - feed["x"].mean(1, keepdims=True)).max())
    assert reach > 65504
    assert method.high_reasons["squares"] == f"output reaches {number(reach)}, FP16 ends at 65 504"
    assert set(method.high_reasons) == {"squares", "variance", "kept_finite", "deviation"}
    assert set(method.lowerable) == {"mean", "centred", "normal", "y"}
    lowered = method.lower(())
    expected = run(model, tmp_path, feed)[0]
    for candidate in (lowered, method.runnable(lowered)):
        np.testing.assert_allclose(run(candidate, tmp_path, feed)[0], expected, atol=0.02)
    assert len(casts(lowered)) == 4, "in, around the island, and out"


def test_twin_sees_hidden_overflow(tmp_path: Path) -> None:
    """An overflow that a CPU would hide is seen by the twin."""
    method = lowering(normalised(), tmp_path, {"x": ROWS})
    assert not method.high_reasons
    lowered = method.lower(())
    large = {"x": 300 * ROWS}
    hidden, twin_output = (run(candidate, tmp_path, large)[0] for candidate in (lowered, method.runnable(lowered)))
    assert np.abs(hidden).max() > 1, "ONNX Runtime computed it in FP32"
    np.testing.assert_array_equal(twin_output, 0)  # a GPU divides by an infinite deviation


def test_partial_sums_count(tmp_path: Path) -> None:
    """Partial sums count even where the result is small."""
    model = graph(
        "(float[N, 64] x) => (float[N, 64] z, float[N, 1] y) { z = Neg (x) y = MatMul (z, weight) }",
        weight=np.tile([[100.0], [-100.0]], (32, 1)).astype(np.float32),
    )
    assert not lowering(model, tmp_path, {"x": np.ones((2, 64), np.float32)}).high_reasons
    method = lowering(model, tmp_path, {"x": np.full((2, 64), 20, np.float32)})
    assert method.high_reasons == {"y": "sums inside reach 128 000; FP16 ends at 65 504"}


REASONS: dict[str, tuple[str, dict[str, Any], np.ndarray[Any, Any], str, str]] = {
    "an epsilon too small": (
        "(float[N, 64] x) => (float[N, 64] y) { held = Add (x, e) root = Sqrt (held) y = Div (x, root) }",
        {"e": np.float32(1e-12)},
        np.abs(ROWS) + 1,
        "held",
        "the constant 1e-12 becomes 0 in FP16, whose digits end at 6.1e-05",
    ),
    "a root behind an epsilon too small": (
        "(float[N, 64] x) => (float[N, 64] y) { held = Add (x, e) root = Sqrt (held) y = Div (x, root) }",
        {"e": np.float32(1e-12)},
        np.abs(ROWS) + 1,
        "y",
        "only held keeps it from dividing by zero, with a constant too small",
    ),
    "a weight beyond the end": (
        "(float[N, 64] x) => (float[N, 64] y) { z = Mul (x, w) y = Relu (x) }",
        {"w": np.full(64, 1e5, np.float32)},
        ROWS * 1e-4,
        "z",
        "a weight reaches 100 000, and it is beyond the end of FP16 at 65 504",
    ),
    "weights that lose their digits": (
        "(float[N, 64] x) => (float[N, 64] y) { z = Mul (x, w) y = Relu (x) }",
        {"w": np.full(64, 1.3e-7, np.float32)},
        ROWS * 1e3,
        "z",
        "a weight changes by 8.3% in FP16, whose digits end at 6.1e-05",
    ),
    "a division by little": (
        "(float[N, 64] x) => (float[N, 64] y) { z = Softplus (x) y = Log (z) }",
        {},
        np.tile(np.array([-11, 3], np.float32), (4, 32)),
        "y",
        "it makes much of numbers as small as 1.7e-05; FP16 has no digits there",
    ),
    "a result too small": (
        "(float[N, 64] x) => (float[N, 64] y) { z = Mul (x, x) y = Relu (x) }",
        {},
        np.full((2, 64), 1e-3, np.float32),
        "z",
        "output stays below 1e-06; the digits of FP16 end at 6.1e-05",
    ),
    "a long mean": (
        "(float[N, L] x) => (float[N, 1] y) { z = Relu (x) y = ReduceMean (z, last) }",
        {"last": np.array([1])},
        np.ones((2, 4096), np.float32),
        "y",
        "it adds 4096 numbers; a sum in FP16 stops growing after 2048 equal ones",
    ),
    "a large angle": (
        "(float[N, 64] x) => (float[N, 64] y) { turned = Mul (x, w) z = Cos (turned) y = Relu (x) }",
        {"w": np.float32(10)},
        np.full((2, 64), 51.1, np.float32),
        "turned",
        "it computes what z needs in full",
    ),
    "a result near the end": (
        "(float[N, 64] x) => (float[N, 64] y) { z = Mul (x, x) y = Relu (x) }",
        {},
        np.full((2, 64), 200, np.float32),
        "z",
        "output reaches 40 000, too near to where FP16 ends at 65 504",
    ),
}


@pytest.mark.parametrize(("text", "weights", "x", "node", "reason"), REASONS.values(), ids=REASONS)
def test_what_stays_fp32_says_why(
    text: str, weights: dict[str, Any], x: np.ndarray[Any, Any], node: str, reason: str, tmp_path: Path
) -> None:
    text = text.replace("{", "{ other = Neg (x)", 1).replace(") => (", ") => (float[N, M] other, ")
    method = lowering(graph(text, **weights), tmp_path, {"x": x.astype(np.float32)})
    assert method.high_reasons[node] == reason


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16])
@pytest.mark.parametrize("masked", [-np.inf, float(np.finfo(np.float32).min), -1e9])
@pytest.mark.parametrize("form", ["Add", "Where"])
def test_mask_fits_the_format(form: str, masked: float, precision: Precision, tmp_path: Path) -> None:
    """A mask ends where the format can carry it."""
    model, feed = attention(masked, form=form), attention_feed()
    method = lowering(model, tmp_path, feed, precision=precision)
    fits = masked == -1e9 and precision is Precision.BF16
    assert set(method.high_reasons) == (set() if fits else {"bias"}), "where the mask is made"
    assert method.settings["masks"] == ("none" if fits else "end at -16384 at laid")
    lowered = method.lower(())
    answer = run(method.runnable(lowered), tmp_path, feed)[0]
    tolerance = 0.005 if precision is Precision.FP16 else 0.05
    np.testing.assert_allclose(answer, run(model, tmp_path, feed)[0], atol=tolerance)


def test_fully_masked_row_is_no_nan(tmp_path: Path) -> None:
    """A row that is masked altogether is no NaN."""
    feed = dict(attention_feed()) | {"open": np.zeros((2, 1, 6), np.bool_)}
    model = attention(float(np.finfo(np.float32).min))
    method = lowering(model, tmp_path, feed)
    answer = run(method.runnable(method.lower(())), tmp_path, feed)[0]
    assert np.isfinite(answer).all()


def test_scores_near_mask_keep_fp32(tmp_path: Path) -> None:
    """Scores that reach towards the mask leave it in FP32."""
    model, feed = attention(-1e9), attention_feed(scale=20)
    method = lowering(model, tmp_path, feed)
    assert method.settings["masks"] == "none"
    assert {"laid", "shares"} <= set(method.high_reasons)
    answer = run(method.runnable(method.lower(())), tmp_path, feed)[0]
    np.testing.assert_allclose(answer, run(model, tmp_path, feed)[0], atol=0.5)


def test_largest_batch_value_counts(tmp_path: Path) -> None:
    """The largest of all batches counts."""
    small, large = {"x": ROWS}, {"x": 300 * ROWS[:1]}
    for feeds in ((small, large), (large, small)):
        assert "squares" in lowering(normalised(), tmp_path, *feeds).high_reasons


def test_small_numbers_before_root_kept(tmp_path: Path) -> None:
    """Small numbers are computed in full where a root makes much of them."""
    model, feed = normalised(epsilon=1e-6), {"x": ROWS * np.geomspace(1e-3, 10, len(ROWS), dtype=np.float32)[:, None]}
    method = lowering(model, tmp_path, feed)
    assert "it makes much of numbers as small as" in method.high_reasons["deviation"]
    small = {"kept_finite", "variance", "squares"}
    assert {method.high_reasons[name] for name in small} == {
        "it computes the small numbers that deviation makes much of"
    }
    answer = run(method.runnable(method.lower(())), tmp_path, feed)[0]
    np.testing.assert_allclose(answer, run(model, tmp_path, feed)[0], atol=0.02)


def test_nothing_lowered_without_inputs(tmp_path: Path) -> None:
    """Without calibration inputs nothing is lowered."""
    with pytest.raises(ExportError, match="no calibration inputs"):
        lowering(normalised(), tmp_path)
