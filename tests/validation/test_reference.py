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


def test_traced_shape_comes_first() -> None:
    """The traced shape comes first, then others, then the ends of the range."""
    planned = plan_cases(text_axes((1, 8, 32), (1, 128, 512)), ABLE)
    assert [(name, tuple(sizes.values())) for name, sizes in planned] == [
        ("traced", (2, 16)),
        ("single", (1, 16)),
        ("untraced", (3, 23)),
        ("min", (1, 1)),
        ("opt", (8, 128)),
        ("max", (32, 512)),
    ]


def test_user_sets_profile_model_sets_probes() -> None:
    """Min, opt and max are the user's, and the probes are what the model can take."""
    planned = dict(plan_cases(text_axes((4, 4, 6), (32, 48, 64)), ABLE))
    assert planned["traced"] == {"batch": 2, "sequence": 16}
    assert [planned[name]["sequence"] for name in ("min", "opt", "max")] == [32, 48, 64]
    short = dict(plan_cases(text_axes((1, 1, 1), (4, 4, 4)), text_axes((1, 8, 32), (1, 8, 10))))
    assert max(sizes["sequence"] for sizes in short.values()) == 10


def test_fixed_shape_model_probed_elsewhere() -> None:
    """A model compiled for one fixed shape is still asked at others."""
    planned = plan_cases(text_axes((1, 1, 1), (16, 16, 16)), ABLE)
    assert [name for name, _ in planned] == ["traced", "single", "untraced"]


def test_shared_shape_asked_once() -> None:
    """A shape that two names share is asked once."""
    axes = {"batch": AxisRange(min=1, opt=2, max=3)}
    assert [name for name, _ in plan_cases(axes, axes)] == ["traced", "single", "untraced"]


def test_case_reads_back_as_stored(tmp_path: Path) -> None:
    """A case is read back as it was stored."""
    feed = stored_feed(2)
    answer = {"hidden": np.ones((2, 3), np.float32), "score": np.float32(4) * np.ones((), np.float32)}
    case = store_case("opt", {"batch": 2}, feed, answer, tmp_path / "reference")
    assert (case.name, case.axes, case.file) == ("opt", {"batch": 2}, "reference/opt.npz")
    result = read_case(case, tmp_path)
    assert result.name == "opt"
    for stored, expected in ((result.feed, feed), (result.answer, answer)):
        assert stored.keys() == expected.keys()
        for name, array in expected.items():
            assert stored[name].dtype == array.dtype
            np.testing.assert_array_equal(stored[name], array)
    assert result.rows.tolist() == [0, 1]


def test_same_named_tensors_kept_apart(tmp_path: Path) -> None:
    """An input and an output of one name are kept apart."""
    case = store_case("opt", {"batch": 1}, {"x": np.zeros((1, 2))}, {"x": np.ones((1, 2))}, tmp_path / "reference")
    result = read_case(case, tmp_path)
    assert (result.feed["x"].sum(), result.answer["x"].sum()) == (0, 2)


def test_large_output_keeps_spread_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large output, the first and the last sample and some between are kept."""
    answer = np.arange(10 * 100, dtype=np.float32).reshape(10, 100)
    monkeypatch.setattr(reference, "STORED_OUTPUT_BYTES", answer.nbytes * 4 // 10)
    case = store_case("max", {"batch": 10}, stored_feed(10), {"large": answer}, tmp_path / "reference")
    result = read_case(case, tmp_path)
    assert result.rows.tolist() == [0, 3, 6, 9]
    np.testing.assert_array_equal(result.answer["large"], answer[[0, 3, 6, 9]])
    assert len(result.feed["ids"]) == 10, "the engine is still asked the whole batch"


def test_two_samples_kept_at_least(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At least two samples are kept however large they are."""
    monkeypatch.setattr(reference, "STORED_OUTPUT_BYTES", 1)
    answer = {"large": np.ones((5, 7), np.float32)}
    case = store_case("max", {"batch": 5}, stored_feed(5), answer, tmp_path / "reference")
    assert read_case(case, tmp_path).rows.tolist() == [0, 4]


@pytest.mark.parametrize("shape", [(1, 4), (12, 4)])
def test_batchless_output_kept_whole(shape: tuple[int, int], tmp_path: Path) -> None:
    """An output that does not begin with the batch is kept whole."""
    answer = {"logits": np.ones((3, 4), np.float32), "other": np.ones(shape, np.float32)}
    case = store_case("opt", {"batch": 3}, stored_feed(3), answer, tmp_path / "reference")
    result = read_case(case, tmp_path)
    assert {name: array.shape for name, array in result.answer.items()} == {"logits": (3, 4), "other": shape}
    assert result.rows.tolist() == [0, 1, 2]
