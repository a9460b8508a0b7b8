"""What counts as the same answer, by numbers alone."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from plansmith.records.model import Precision, Tensor
from plansmith.records.validation import OutputComparison
from plansmith.validation.comparison import TOLERANCES, Padding, compare_output, format_shortfall, is_constant

if TYPE_CHECKING:
    from numpy.typing import NDArray

FP32 = TOLERANCES[Precision.FP32]


def compared(reference: Any, candidate: Any, *, valid: NDArray[np.bool_] | None = None) -> OutputComparison:
    return compare_output("case", "output", np.asarray(reference), np.asarray(candidate), FP32, valid=valid)


def drawn(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def with_error(reference: NDArray[np.float32], relative: float) -> NDArray[np.float32]:
    """The reference with one element wrong, by a share of the magnitude."""
    candidate = reference.copy()
    candidate.flat[0] += np.float32(relative * np.sqrt(np.mean(reference.astype(np.float64) ** 2)))
    return candidate


def test_equal_answer_passes() -> None:
    """An equal answer passes without any error."""
    answer = drawn(3, 5)
    row = compared(answer, answer.copy())
    assert (row.failures, row.max_absolute, row.max_relative, row.elements) == ((), 0.0, 0.0, 15)
    assert row.min_cosine == pytest.approx(1.0)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_verdict_independent_of_magnitude(scale: float) -> None:
    """The verdict does not depend on the magnitude."""
    reference = drawn(4, 500) * np.float32(scale)
    good = compared(reference, with_error(reference, FP32.max_relative * 0.75))
    bad = compared(reference, with_error(reference, FP32.max_relative * 1.25))
    assert not good.failures
    assert [f.split(" is ")[0] for f in bad.failures] == ["maximum error relative to the output's magnitude"]
    assert bad.max_relative == pytest.approx(FP32.max_relative * 1.25, rel=0.01)
    assert bad.magnitude == pytest.approx(scale, rel=0.05)


def test_widespread_error_has_smaller_limit() -> None:
    """An error everywhere is held to a smaller limit than an error in one place."""
    reference = drawn(4, 500)
    row = compared(reference, reference + np.float32((FP32.quantile_relative + FP32.max_relative) / 2))
    assert [f.split(" of ")[0] for f in row.failures] == ["99% quantile"]


def test_cosine_is_worst_sample() -> None:
    """The cosine is that of the worst sample."""
    reference = drawn(8, 50)
    candidate = reference.copy()
    candidate[5] *= -1
    row = compared(reference, candidate)
    assert row.min_cosine == pytest.approx(-1.0)
    assert any("smallest cosine of a sample is -1.0" in f for f in row.failures)


def test_what_padding_holds_means_nothing() -> None:
    reference = drawn(2, 3, 4)
    candidate = reference.copy()
    candidate[1, 2] = np.nan
    reference[1, 1] = np.inf
    valid = np.array([[True, True, True], [True, False, False]])
    row = compared(reference, candidate, valid=valid)
    assert (row.failures, row.elements) == ((), 4 * 4)


def test_error_beside_padding_counts() -> None:
    """An error beside the padding still counts."""
    reference = drawn(2, 3, 4)
    candidate = reference.copy()
    candidate[1, 0] += 1
    assert compared(reference, candidate, valid=np.array([[True, True, True], [True, False, False]])).failures


def test_padding_case_proves_nothing() -> None:
    """A case that is padding alone proves nothing."""
    answer = drawn(2, 3)
    row = compared(answer, answer, valid=np.zeros((2, 3), bool))
    assert row.failures == ("no element counts: everything is padding",)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_non_number_refused_on_either_side(wrong: float) -> None:
    """An answer that is not a number is refused on either side."""
    good, bad = drawn(2, 3), drawn(2, 3)
    bad[1, 1] = wrong
    assert compared(good, bad).failures == ("NaN or Inf in the candidate's answer",)
    assert compared(bad, good).failures == ("NaN or Inf in the reference's answer",)
    assert compared(bad, bad).failures, "agreeing on NaN is no agreement"


def test_broadcastable_shape_refused() -> None:
    """Another shape is refused even where it would broadcast."""
    row = compared(drawn(2, 3), drawn(1, 3))
    assert row.failures == ("shape is 1x3, expected 2x3",)
    assert compared(drawn(1), drawn(1)[0]).failures == ("shape is scalar, expected 1",)


def test_other_dtype_refused() -> None:
    """Another dtype is refused even where the values are equal."""
    row = compared(np.ones((2, 3), np.float32), np.ones((2, 3), np.float16))
    assert row.failures == ("dtype is float16, expected float32",)


def test_scalars_are_compared() -> None:
    assert not compared(np.float32(3), np.float32(3)).failures
    assert compared(np.float32(3), np.float32(3.01)).failures


def test_zero_vectors_agree_alone() -> None:
    """Zero vectors agree with each other, and with nothing else."""
    zeros, something = np.zeros((2, 3), np.float32), drawn(2, 3)
    assert not compared(zeros, zeros).failures
    assert compared(zeros, something).failures
    assert compared(something, zeros).failures


def test_zero_sample_compared_like_others() -> None:
    """One zero sample among others is compared like them."""
    reference = drawn(3, 8)
    reference[1] = 0
    assert not compared(reference, reference.copy()).failures
    candidate = reference.copy()
    candidate[1, 0] = 1e-5
    assert compared(reference, candidate).min_cosine == 0.0


def test_integers_and_booleans_compared() -> None:
    """Integers and Booleans are compared."""
    ids, flags = np.array([[101, 7], [102, 9]]), np.array([[True, False], [False, True]])
    assert not compared(ids, ids.copy()).failures
    assert not compared(flags, flags.copy()).failures
    assert compared(ids, ids + 1).failures
    assert compared(flags, ~flags).failures


def test_large_integer_off_by_one_refused() -> None:
    """A large integer off by one is refused."""
    ids = np.full((2, 500), 30_000)
    assert compared(ids, ids + 1).failures


def test_extreme_values_compared() -> None:
    """Answers at the ends of their type are compared."""
    large = np.full((2, 3), 3e38, np.float32)
    assert not compared(large, large.copy()).failures
    assert compared(large, -large).failures
    small = np.full((2, 3), 1e-45, np.float32)
    assert not compared(small, small.copy()).failures


def test_unvarying_output_is_constant() -> None:
    """An output that never varies between samples is constant."""
    same, different = np.ones((3, 4), np.float32), drawn(3, 4)
    assert is_constant([compared(same, same)])
    assert is_constant([compared(same * 0, same * 0)])
    assert not is_constant([compared(different, different)])
    assert not is_constant([compared(same, same), compared(different, different)])


def test_single_sample_proves_no_constant() -> None:
    """A single sample says nothing about being constant."""
    sample = np.ones((1, 4), np.float32)
    assert not is_constant([compared(sample, sample)])
    assert not is_constant([compared(np.float32(1), np.float32(1))])


def test_padding_makes_no_variation() -> None:
    """Padding does not make an output vary."""
    answer = np.ones((2, 3, 4), np.float32)
    answer[1, 2] = 5
    valid = np.array([[True, True, True], [True, True, False]])
    assert is_constant([compared(answer, answer, valid=valid)])


def test_padding_applies_by_mask_axes() -> None:
    """Padding applies to the outputs that begin with the axes of the mask."""
    axes = ("batch", "sequence")
    inputs = [Tensor(name=n, dtype="int64", dims=axes) for n in ("input_ids", "attention_mask")]
    feed = {"input_ids": np.array([[7, 0]]), "attention_mask": np.array([[1, 0]])}
    hidden = Tensor(name="hidden", dtype="float32", dims=(*axes, 4))
    pooled = Tensor(name="pooled", dtype="float32", dims=("batch", 4))
    padding = Padding(inputs, "attention_mask")
    valid = padding.valid(hidden, feed)
    assert valid is not None
    assert valid.tolist() == [[True, False]]
    assert padding.valid(pooled, feed) is None
    assert Padding(inputs, None).valid(hidden, feed) is None


def test_lower_precision_may_miss_few() -> None:
    """Of whole numbers, a lower precision may miss a few."""
    ids = np.arange(200).reshape(2, 100)
    wrong = ids.copy()
    wrong[0, :5] += 1000
    int8 = compare_output("case", "output", ids, wrong, TOLERANCES[Precision.INT8])
    assert (int8.failures, int8.min_cosine) == ((), 0.975)
    assert compared(ids, wrong).failures == ("share of equal elements is 0.975000, allowed 0.99999999",)


def test_short_answers_share_direction() -> None:
    """Answers of a few numbers have one direction together."""
    reference = drawn(100, 2)
    reference[3] = (0.01, -0.01)
    candidate = reference.copy()
    candidate[3] *= -1
    row = compare_output("case", "output", reference, candidate, TOLERANCES[Precision.INT8])
    assert not row.failures
    assert compared(reference, candidate).failures
    wide = drawn(100, 16)
    variant = wide.copy()
    variant[3] *= -1
    assert compare_output("case", "output", wide, variant, TOLERANCES[Precision.INT8]).min_cosine == pytest.approx(-1)


def test_precision_stricter_than_one_below() -> None:
    """Every precision is held to more than the one below."""
    order = [TOLERANCES[precision] for precision in Precision]
    for higher, lower in itertools.pairwise(order):
        assert higher.max_relative < lower.max_relative
        assert higher.quantile_relative < lower.quantile_relative
        assert higher.min_cosine > lower.min_cosine
        assert higher.min_mean_cosine > lower.min_mean_cosine


def test_shortfall_has_digits_that_differ() -> None:
    """A value just below its limit is written with enough digits to tell."""
    assert format_shortfall(0.9999999984, 0.999999999) == "0.999999998, allowed 0.999999999"
    assert format_shortfall(0.9999999989, 0.999999999) == "0.9999999989, allowed 0.999999999"
    assert format_shortfall(0.5, 0.9) == "0.500000, allowed 0.9"
