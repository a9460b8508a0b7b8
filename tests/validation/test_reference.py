"""Which shapes are asked, and how the answers are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from plansmith.data import reference
from plansmith.data.reference import plan_cases, read_case, store_case
from plansmith.records.model import AxisRange

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


def text_axes(batch: tuple[int, int, int], sequence: tuple[int, int, int]) -> dict[str, AxisRange]:
    return {
        name: AxisRange(min=low, opt=usual, max=high)
        for name, (low, usual, high) in {"batch": batch, "sequence": sequence}.items()
    }


ABLE = text_axes((1, 8, 32), (1, 128, 512))


def stored_feed(batch: int) -> dict[str, NDArray[np.generic]]:
    return {"ids": np.arange(batch * 3).reshape(batch, 3)}


def test_the_traced_shape_comes_first_then_others_then_the_ends_of_the_range() -> None:
    planned = plan_cases(text_axes((1, 8, 32), (1, 128, 512)), ABLE)
    assert [(name, tuple(sizes.values())) for name, sizes in planned] == [
        ("traced", (2, 16)),
        ("single", (1, 16)),
        ("untraced", (3, 23)),
        ("min", (1, 1)),
        ("opt", (8, 128)),
        ("max", (32, 512)),
    ]


def test_min_opt_and_max_are_the_users_and_the_probes_are_what_the_model_can_take() -> None:
    planned = dict(plan_cases(text_axes((4, 4, 6), (32, 48, 64)), ABLE))
    assert planned["traced"] == {"batch": 2, "sequence": 16}
    assert [planned[name]["sequence"] for name in ("min", "opt", "max")] == [32, 48, 64]
    short = dict(plan_cases(text_axes((1, 1, 1), (4, 4, 4)), text_axes((1, 8, 32), (1, 8, 10))))
    assert max(sizes["sequence"] for sizes in short.values()) == 10


def test_a_model_compiled_for_one_fixed_shape_is_still_asked_at_others() -> None:
    planned = plan_cases(text_axes((1, 1, 1), (16, 16, 16)), ABLE)
    assert [name for name, _ in planned] == ["traced", "single", "untraced"]


def test_a_shape_that_two_names_share_is_asked_once() -> None:
    axes = {"batch": AxisRange(min=1, opt=2, max=3)}
    assert [name for name, _ in plan_cases(axes, axes)] == ["traced", "single", "untraced"]


def test_a_case_is_read_back_as_it_was_stored(tmp_path: Path) -> None:
    feed = stored_feed(2)
    answer = {"hidden": np.ones((2, 3), np.float32), "score": np.float32(4) * np.ones((), np.float32)}
    case = store_case("opt", {"batch": 2}, feed, answer, tmp_path / "reference")
    assert (case.name, case.axes, case.file) == ("opt", {"batch": 2}, "reference/opt.npz")
    found = read_case(case, tmp_path)
    assert found.name == "opt"
    for stored, given in ((found.feed, feed), (found.answer, answer)):
        assert stored.keys() == given.keys()
        for name, array in given.items():
            assert stored[name].dtype == array.dtype
            np.testing.assert_array_equal(stored[name], array)
    assert found.rows.tolist() == [0, 1]


def test_an_input_and_an_output_of_one_name_are_kept_apart(tmp_path: Path) -> None:
    case = store_case("opt", {"batch": 1}, {"x": np.zeros((1, 2))}, {"x": np.ones((1, 2))}, tmp_path / "reference")
    found = read_case(case, tmp_path)
    assert (found.feed["x"].sum(), found.answer["x"].sum()) == (0, 2)


def test_of_a_large_output_the_first_and_the_last_sample_and_some_between_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = np.arange(10 * 100, dtype=np.float32).reshape(10, 100)
    monkeypatch.setattr(reference, "STORED_OUTPUT_BYTES", answer.nbytes * 4 // 10)
    case = store_case("max", {"batch": 10}, stored_feed(10), {"large": answer}, tmp_path / "reference")
    found = read_case(case, tmp_path)
    assert found.rows.tolist() == [0, 3, 6, 9]
    np.testing.assert_array_equal(found.answer["large"], answer[[0, 3, 6, 9]])
    assert len(found.feed["ids"]) == 10, "the engine is still asked the whole batch"


def test_at_least_two_samples_are_kept_however_large_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "STORED_OUTPUT_BYTES", 1)
    answer = {"large": np.ones((5, 7), np.float32)}
    case = store_case("max", {"batch": 5}, stored_feed(5), answer, tmp_path / "reference")
    assert read_case(case, tmp_path).rows.tolist() == [0, 4]


@pytest.mark.parametrize("shape", [(1, 4), (12, 4)])
def test_an_output_that_does_not_begin_with_the_batch_is_kept_whole(shape: tuple[int, int], tmp_path: Path) -> None:
    answer = {"logits": np.ones((3, 4), np.float32), "other": np.ones(shape, np.float32)}
    case = store_case("opt", {"batch": 3}, stored_feed(3), answer, tmp_path / "reference")
    found = read_case(case, tmp_path)
    assert {name: array.shape for name, array in found.answer.items()} == {"logits": (3, 4), "other": shape}
    assert found.rows.tolist() == [0, 1, 2]
