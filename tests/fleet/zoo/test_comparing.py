"""What counts as right: the cosine, the largest error, whole numbers, and what is not finite."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from plansmith.fleet.zoo.compare import difference

Array = NDArray[np.generic]
VALUES = np.linspace(-2, 2, 400, dtype=np.float32).reshape(2, 4, 50)


def changed(array: Array, place: tuple[int, ...], value: float) -> Array:
    copy = array.copy()
    copy[place] = value
    return copy


def test_the_same_answer_is_right() -> None:
    assert difference({"a": VALUES}, {"a": VALUES.copy()}) is None


def test_an_error_is_measured_by_the_largest_value_and_by_1_where_that_is_smaller() -> None:
    assert difference({"a": VALUES}, {"a": VALUES + 0.0019}) is None
    assert "largest error 0.0021" in str(difference({"a": VALUES}, {"a": VALUES + 0.0021}))
    small = VALUES / 1000
    assert difference({"a": small}, {"a": changed(small, (0, 0, 0), small[0, 0, 0] + 0.00002)}) is None


def test_an_answer_of_small_numbers_that_points_elsewhere_is_wrong() -> None:
    assert "cosine" in str(difference({"a": VALUES / 1e4}, {"a": -VALUES / 1e4}))


def test_a_wrong_value_at_a_padded_position_counts() -> None:
    answer = changed(VALUES, (1, 3, 49), 9.0)
    assert "largest error 7 " in str(difference({"a": VALUES}, {"a": answer}))


@pytest.mark.parametrize(
    ("reference", "answer", "says"),
    [
        (VALUES, VALUES[:1], "shape is 1x4x50, PyTorch's 2x4x50"),
        (np.arange(4), np.array([0, 1, 2, 4]), "1 of 4 elements differ"),
        (np.array([True, False]), np.array([True, True]), "1 of 2 elements differ"),
        (VALUES, changed(VALUES, (0, 0, 0), np.nan), "NaN or Inf at other places"),
        (changed(VALUES, (0, 0, 0), np.inf), VALUES, "NaN or Inf at other places"),
        (changed(VALUES, (0, 0, 0), np.inf), changed(VALUES, (0, 0, 0), -np.inf), "NaN or Inf at other places"),
    ],
)
def test_another_form_and_other_whole_numbers_are_wrong(reference: Array, answer: Array, says: str) -> None:
    assert says in str(difference({"a": reference}, {"a": answer}))


def test_a_masked_score_that_is_minus_infinity_in_both_is_right() -> None:
    masked = changed(VALUES, (0, 0, 0), -np.inf)
    assert difference({"a": masked}, {"a": masked.copy()}) is None


def test_every_output_of_pytorch_has_to_be_there() -> None:
    assert difference({"a": VALUES, "b": VALUES}, {"a": VALUES}) == "there is no output b"
    assert difference({"a": VALUES}, {"a": VALUES, "more": VALUES}) is None
