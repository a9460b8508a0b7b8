"""What counts as right: the cosine, the largest error, whole numbers, and what is not finite."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from plansmith.fleet.zoo.axes import difference

Array = NDArray[np.generic]
VALUES = np.linspace(-2, 2, 400, dtype=np.float32).reshape(2, 4, 50)


def changed(array: Array, place: tuple[int, ...], value: float) -> Array:
    copy = array.copy()
    copy[place] = value
    return copy


def test_the_same_answer_is_right() -> None:
    assert difference({"a": VALUES}, {"a": VALUES.copy()}) is None


def test_error_scaled_by_largest_value() -> None:
    """An error is measured by the largest value and by 1 where that is smaller."""
    assert difference({"a": VALUES}, {"a": VALUES + 0.0019}) is None
    assert "largest error 0.0021" in str(difference({"a": VALUES}, {"a": VALUES + 0.0021}))
    small = VALUES / 1000
    assert difference({"a": small}, {"a": changed(small, (0, 0, 0), small[0, 0, 0] + 0.00002)}) is None


def test_small_wrong_direction_is_wrong() -> None:
    """An answer of small numbers that points elsewhere is wrong."""
    assert "cosine" in str(difference({"a": VALUES / 1e4}, {"a": -VALUES / 1e4}))


def test_wrong_padded_value_counts() -> None:
    """A wrong value at a padded position counts."""
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
def test_other_form_is_wrong(reference: Array, answer: Array, says: str) -> None:
    """Another form and other whole numbers are wrong."""
    assert says in str(difference({"a": reference}, {"a": answer}))


def test_matching_infinities_are_right() -> None:
    """A masked score that is minus infinity in both is right."""
    masked = changed(VALUES, (0, 0, 0), -np.inf)
    assert difference({"a": masked}, {"a": masked.copy()}) is None


def test_pytorch_outputs_are_required() -> None:
    """Every output of PyTorch has to be there."""
    assert difference({"a": VALUES, "b": VALUES}, {"a": VALUES}) == "there is no output b"
    assert difference({"a": VALUES}, {"a": VALUES, "more": VALUES}) is None
