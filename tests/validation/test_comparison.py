"""What counts as the same answer, by numbers alone."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from plansmith.records.model import Precision, Tensor
from plansmith.records.validation import OutputComparison
from plansmith.validation.comparison import TOLERANCES, Padding, compare_output, is_constant

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


def test_an_equal_answer_passes_without_any_error() -> None:
    answer = drawn(3, 5)
    row = compared(answer, answer.copy())
    assert (row.failures, row.max_absolute, row.max_relative, row.elements) == ((), 0.0, 0.0, 15)
    assert row.min_cosine == pytest.approx(1.0)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_the_verdict_does_not_depend_on_the_magnitude(scale: float) -> None:
    reference = drawn(4, 500) * np.float32(scale)
    good = compared(reference, with_error(reference, FP32.max_relative * 0.75))
    bad = compared(reference, with_error(reference, FP32.max_relative * 1.25))
    assert not good.failures
    assert [f.split(" is ")[0] for f in bad.failures] == ["maximum error relative to the output's magnitude"]
    assert bad.max_relative == pytest.approx(FP32.max_relative * 1.25, rel=0.01)
    assert bad.magnitude == pytest.approx(scale, rel=0.05)


def test_an_error_everywhere_is_held_to_a_smaller_limit_than_an_error_in_one_place() -> None:
    reference = drawn(4, 500)
    row = compared(reference, reference + np.float32((FP32.quantile_relative + FP32.max_relative) / 2))
    assert [f.split(" of ")[0] for f in row.failures] == ["99% quantile"]


def test_the_cosine_is_that_of_the_worst_sample() -> None:
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


def test_an_error_beside_the_padding_still_counts() -> None:
    reference = drawn(2, 3, 4)
    candidate = reference.copy()
    candidate[1, 0] += 1
    assert compared(reference, candidate, valid=np.array([[True, True, True], [True, False, False]])).failures


def test_a_case_that_is_padding_alone_proves_nothing() -> None:
    answer = drawn(2, 3)
    row = compared(answer, answer, valid=np.zeros((2, 3), bool))
    assert row.failures == ("no element counts: everything is padding",)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_an_answer_that_is_not_a_number_is_refused_on_either_side(wrong: float) -> None:
    good, bad = drawn(2, 3), drawn(2, 3)
    bad[1, 1] = wrong
    assert compared(good, bad).failures == ("NaN or Inf in the candidate's answer",)
    assert compared(bad, good).failures == ("NaN or Inf in the reference's answer",)
    assert compared(bad, bad).failures, "agreeing on NaN is no agreement"


def test_another_shape_is_refused_even_where_it_would_broadcast() -> None:
    row = compared(drawn(2, 3), drawn(1, 3))
    assert row.failures == ("shape is 1x3, expected 2x3",)
    assert compared(drawn(1), drawn(1)[0]).failures == ("shape is scalar, expected 1",)


def test_another_dtype_is_refused_even_where_the_values_are_equal() -> None:
    row = compared(np.ones((2, 3), np.float32), np.ones((2, 3), np.float16))
    assert row.failures == ("dtype is float16, expected float32",)


def test_scalars_are_compared() -> None:
    assert not compared(np.float32(3), np.float32(3)).failures
    assert compared(np.float32(3), np.float32(3.01)).failures


def test_zero_vectors_agree_with_each_other_and_with_nothing_else() -> None:
    zeros, something = np.zeros((2, 3), np.float32), drawn(2, 3)
    assert not compared(zeros, zeros).failures
    assert compared(zeros, something).failures
    assert compared(something, zeros).failures


def test_one_zero_sample_among_others_is_compared_like_them() -> None:
    reference = drawn(3, 8)
    reference[1] = 0
    assert not compared(reference, reference.copy()).failures
    candidate = reference.copy()
    candidate[1, 0] = 1e-5
    assert compared(reference, candidate).min_cosine == 0.0


def test_integers_and_truth_values_are_compared() -> None:
    ids, flags = np.array([[101, 7], [102, 9]]), np.array([[True, False], [False, True]])
    assert not compared(ids, ids.copy()).failures
    assert not compared(flags, flags.copy()).failures
    assert compared(ids, ids + 1).failures
    assert compared(flags, ~flags).failures


def test_a_large_integer_off_by_one_is_refused() -> None:
    ids = np.full((2, 500), 30_000)
    assert compared(ids, ids + 1).failures


def test_answers_at_the_ends_of_their_type_are_compared() -> None:
    large = np.full((2, 3), 3e38, np.float32)
    assert not compared(large, large.copy()).failures
    assert compared(large, -large).failures
    small = np.full((2, 3), 1e-45, np.float32)
    assert not compared(small, small.copy()).failures


def test_an_output_that_never_varies_between_samples_is_constant() -> None:
    same, different = np.ones((3, 4), np.float32), drawn(3, 4)
    assert is_constant([compared(same, same)])
    assert is_constant([compared(same * 0, same * 0)])
    assert not is_constant([compared(different, different)])
    assert not is_constant([compared(same, same), compared(different, different)])


def test_a_single_sample_says_nothing_about_being_constant() -> None:
    one = np.ones((1, 4), np.float32)
    assert not is_constant([compared(one, one)])
    assert not is_constant([compared(np.float32(1), np.float32(1))])


def test_padding_does_not_make_an_output_vary() -> None:
    answer = np.ones((2, 3, 4), np.float32)
    answer[1, 2] = 5
    valid = np.array([[True, True, True], [True, True, False]])
    assert is_constant([compared(answer, answer, valid=valid)])


def test_padding_applies_to_the_outputs_that_begin_with_the_axes_of_the_mask() -> None:
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


def test_of_whole_numbers_a_lower_precision_may_miss_a_few() -> None:
    ids = np.arange(200).reshape(2, 100)
    wrong = ids.copy()
    wrong[0, :5] += 1000
    int8 = compare_output("case", "output", ids, wrong, TOLERANCES[Precision.INT8])
    assert (int8.failures, int8.min_cosine) == ((), 0.975)
    assert compared(ids, wrong).failures == ("share of equal elements is 0.975000000, allowed 0.99999999",)


def test_answers_of_a_few_numbers_have_one_direction_together() -> None:
    reference = drawn(100, 2)
    reference[3] = (0.01, -0.01)
    candidate = reference.copy()
    candidate[3] *= -1
    row = compare_output("case", "output", reference, candidate, TOLERANCES[Precision.INT8])
    assert not row.failures
    assert compared(reference, candidate).failures
    wide = drawn(100, 16)
    other = wide.copy()
    other[3] *= -1
    assert compare_output("case", "output", wide, other, TOLERANCES[Precision.INT8]).min_cosine == pytest.approx(-1)


def test_every_precision_is_held_to_more_than_the_one_below() -> None:
    order = [TOLERANCES[precision] for precision in Precision]
    for higher, lower in itertools.pairwise(order):
        assert higher.max_relative < lower.max_relative
        assert higher.quantile_relative < lower.quantile_relative
        assert higher.min_cosine > lower.min_cosine
        assert higher.min_mean_cosine > lower.min_mean_cosine
