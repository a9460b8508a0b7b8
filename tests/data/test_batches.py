"""Sizes of batches: inside of the range, different ones for calibration, and no sample lost without need."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from plansmith.data.batches import calibration_batches, evaluation_batches, own_shapes
from plansmith.records.model import AxisRange

USUAL = AxisRange(min=1, opt=8, max=32)
FIXED = AxisRange(min=8, opt=8, max=8)
NARROW = AxisRange(min=3, opt=4, max=5)
RANGES = [USUAL, FIXED, NARROW, AxisRange(min=1, opt=1, max=1), AxisRange(min=1, opt=2, max=2)]


@pytest.mark.parametrize("batch", RANGES, ids=lambda r: f"{r.min}-{r.opt}-{r.max}")
@pytest.mark.parametrize("plan", [calibration_batches, evaluation_batches])
@pytest.mark.parametrize("paired", [False, True])
def test_batches_stay_in_range(plan: Callable[..., list[int]], batch: AxisRange, paired: bool) -> None:
    """Every batch is inside its range."""
    for count in range(batch.min + batch.min % 2, 150, 2 if paired else 1):
        sizes = plan(count, batch, paired=paired)
        assert sizes, count
        assert all(batch.min <= size <= batch.max for size in sizes), (count, sizes)
        assert count - (batch.min + 1) <= sum(sizes) <= count, (count, sizes)
        if batch.min == 1:
            assert sum(sizes) == count
        if paired and batch.max > 1:
            assert all(size % 2 == 0 for size in sizes)


def test_calibration_has_several_sizes() -> None:
    """Calibration has batches of several sizes and a large one."""
    sizes = calibration_batches(128, USUAL, paired=False)
    assert max(sizes) == sizes[-1] == 32
    assert {1, 4, 8, 32} <= set(sizes)


def test_few_samples_still_batch() -> None:
    """Few samples still make a batch of more than one."""
    assert max(calibration_batches(4, USUAL, paired=False)) > 1


def test_evaluation_goes_in_usual_batches() -> None:
    assert evaluation_batches(20, USUAL, paired=False) == [8, 8, 4]
    assert evaluation_batches(20, FIXED, paired=False) == [8, 8]
    assert evaluation_batches(11, NARROW, paired=False) == [5, 3, 3]


def test_own_inputs_grow() -> None:
    """Own inputs go from the smallest shape to the largest."""
    shapes = own_shapes({"batch": USUAL, "sequence": AxisRange(min=1, opt=128, max=512)}, "batch", 128)
    assert shapes[0]["sequence"] == 1
    assert shapes[-1] == {"batch": 4, "sequence": 512}
    assert len({s["batch"] for s in shapes}) > 1
    assert len({s["sequence"] for s in shapes}) > 8
    assert 50 < sum(s["batch"] for s in shapes) < 200


def test_own_batches_differ_in_size() -> None:
    """Own inputs of a model that moves only in its batch differ in the size of the batch."""
    sizes = [s["batch"] for s in own_shapes({"batch": USUAL}, "batch", 128)]
    assert sizes[0] == 8
    assert len(set(sizes)) == len(sizes)
    assert sum(sizes) >= 128
    assert own_shapes({"batch": FIXED}, "batch", 128) == [{"batch": 8}]
    assert own_shapes({}, "batch", 128) == [{}]
