"""How samples are put into batches: sizes only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import cycle

from plansmith.records.model import AxisRange

# Smaller batches cost more time in asking than they save in memory.
_USUAL_BATCH = 8
_LARGEST_JOINED = 4
"""Ranges at the longest sequence need several samples, and not the memory of the largest batch."""
_MOST_OWN_CASES = 16


def evaluation_batches(count: int, batch: AxisRange, *, paired: bool) -> list[int]:
    """Sizes of batches that hold `count` samples in their order.

    What is left over, fewer than the smallest batch, goes to no batch; pairs are kept in one where two fit.
    """
    unit = 2 if paired and batch.max > 1 else 1
    smallest, largest = math.ceil(batch.min / unit), batch.max // unit
    usual = min(max(batch.opt, _USUAL_BATCH) // unit, largest)
    units = count // unit
    full, left = divmod(units, usual)
    sizes = [usual] * full + ([left] if left else [])
    if 0 < left < smallest:
        together = sizes.pop() + (sizes.pop() if full else 0)
        sizes += [together - smallest, smallest] if together >= 2 * smallest else [usual] * (full > 0)
    return [size * unit for size in sizes]


def calibration_batches(count: int, batch: AxisRange, *, paired: bool) -> list[int]:
    """Sizes of batches that differ: the largest that half of the samples fill comes last; as `evaluation_batches`."""
    unit = 2 if paired and batch.max > 1 else 1
    smallest, largest = math.ceil(batch.min / unit), batch.max // unit
    units = count // unit
    last = max(min(largest, units // 2), min(smallest, units))
    usual = min(max(smallest, batch.opt // unit), max(last, smallest))
    sizes: list[int] = []
    left = units - last
    for wanted in cycle(dict.fromkeys((usual, smallest, max(smallest, (usual + smallest) // 2)))):
        size = min(wanted, left)
        if size < smallest:
            break
        sizes.append(size)
        left -= size
    if 0 < left <= largest - last:
        last += left
    return [size * unit for size in (*sizes, last) if size >= smallest]


def joined_batch(batch: AxisRange) -> int:
    """Samples of a batch at the longest sequence."""
    return max(batch.min, min(batch.max, _LARGEST_JOINED))


def own_shapes(axes: Mapping[str, AxisRange], batch_axis: str, samples: int) -> list[dict[str, int]]:
    """Shapes of different sizes, from the smallest to the largest, that hold so many samples together.

    The batch is smaller where everything else is largest.
    """
    batch = axes.get(batch_axis, AxisRange(min=1, opt=1, max=1))
    others = {axis: r for axis, r in axes.items() if axis != batch_axis}
    if not others:
        return [{batch_axis: size} for size in _own_batches(batch, samples)] if axes else [{}]
    sizes = (batch.opt, batch.min, joined_batch(batch))
    steps = max(2, min(_MOST_OWN_CASES, math.ceil(samples * len(sizes) / sum(sizes)) + 1))
    found: list[dict[str, int]] = []
    for step in range(steps):
        size = joined_batch(batch) if step == steps - 1 else sizes[step % len(sizes)]
        shape = {axis: _between(r, step / (steps - 1)) for axis, r in others.items()} | {batch_axis: size}
        shape = {axis: shape[axis] for axis in axes}
        if shape not in found:
            found.append(shape)
    return found


def _own_batches(batch: AxisRange, samples: int) -> list[int]:
    """Different sizes, the usual one first, as equal ones would hold the same samples."""
    found: list[int] = []
    for size in dict.fromkeys((batch.opt, *range(batch.min, batch.max + 1))):
        if sum(found) >= samples:
            break
        found.append(size)
    return found


def _between(given: AxisRange, share: float) -> int:
    """A size in the range, by equal ratios: as many short ones as long ones."""
    return round(given.min * math.pow(given.max / given.min, share) / given.step) * given.step
