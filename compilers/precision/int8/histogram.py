"""From what a tensor held to the range that 8 bits cover: MinMax, percentile and entropy, in bounded memory.

However much data streams by, a tensor costs one histogram of magnitudes. Its width doubles when a larger value comes,
by adding neighbouring bins: counts stay exact, and at least half of the bins lie within the values' range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from plansmith.compilers.precision.int8.format import Format

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from plansmith.config.precision import Calibration

BINS = 4096
PERCENTILE = 99.99
"""Of the magnitudes; what lies beyond saturates."""

LEVELS = 128
"""Magnitudes that a signed byte tells apart."""

_ENTROPY_BINS = 2048
_ENTROPY_STEP = 8
_TINY = 1e-12
_SMALLEST = float(np.finfo(np.float32).tiny)
_SATURATION = 2.0


@dataclass
class Histogram:
    """Magnitudes of a tensor's values but zeros, with the lowest and the highest value.

    Zeros are left out: eight bits hold them exactly, and behind a Relu they would outweigh all else.
    """

    lowest: float = 0.0
    highest: float = 0.0
    width: float = 0.0
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))

    def update(self, values: NDArray[np.float32]) -> None:
        """Take in a batch of values of any shape; NaN and infinite ones say nothing of a range.

        What is too small for FP32's full digits counts as zero: no scale could be made of it.
        """
        finite = values[np.isfinite(values) & (np.abs(values) >= _SMALLEST)].astype(np.float64)
        if not finite.size:
            return
        self.lowest = min(self.lowest, float(finite.min()))
        self.highest = max(self.highest, float(finite.max()))
        largest = max(-self.lowest, self.highest)
        self.width = self.width or largest
        while self.width < largest:
            self.counts = np.concatenate([self.counts.reshape(-1, 2).sum(axis=1), np.zeros(BINS // 2, np.int64)])
            self.width *= 2
        places = np.minimum((np.abs(finite) * (BINS / self.width)).astype(np.int64), BINS - 1)
        self.counts += np.bincount(places.ravel(), minlength=BINS)

    @property
    def largest(self) -> float:
        """The largest magnitude."""
        return max(-self.lowest, self.highest)


@dataclass(frozen=True)
class Range:
    """What 8 bits cover of a tensor.

    Attributes:
        low: 0 or below.
        high: 0 or above.
        how: the calibration that chose it.
    """

    low: float
    high: float
    how: str


def choose(histogram: Histogram, calibration: Calibration, form: Format) -> Range:
    """The range that a calibration takes for a format.

    "auto" takes the largest value, unless one of the others has at most half of its expected squared error: rounding is
    noise that evens out behind a sum, while saturation always hits the same values, the largest, in the same direction.
    Entropy compares with steps of one size, and is for integers alone.
    """
    limits = {"minmax": minmax, "percentile": percentile}
    if not form.fraction_bits:
        limits["entropy"] = entropy
    tried = limits if calibration == "auto" else {calibration: limits[calibration]}
    errors = {}
    for how, limit in tried.items():
        largest = min(limit(histogram), histogram.largest)
        found = Range(max(histogram.lowest, -largest), min(histogram.highest, largest), how)
        errors[found] = expected_error(histogram, found, form) * (1 if how == "minmax" else _SATURATION)
    return min(errors, key=errors.__getitem__)


def told(ranges: Mapping[str, Range]) -> str:
    """Which calibration chose how many ranges, in words."""
    ways = [found.how for found in ranges.values()]
    return ", ".join(f"{how} for {ways.count(how)}" for how in dict.fromkeys(ways))


def minmax(histogram: Histogram) -> float:
    """The largest magnitude seen: nothing saturates."""
    return histogram.largest


def percentile(histogram: Histogram, share: float = PERCENTILE) -> float:
    """The magnitude below which this percentage of all values lies, to the width of a bin."""
    cumulated = np.cumsum(histogram.counts)
    if not cumulated[-1]:
        return histogram.largest
    place = int(np.searchsorted(cumulated, cumulated[-1] * share / 100))
    return (place + 1) * histogram.width / BINS


def entropy(histogram: Histogram) -> float:
    """The magnitude at which cutting off changes the distribution least, by the Kullback-Leibler divergence.

    The distribution up to a cut, with all beyond it in the last bin, is compared with itself in as many steps as a
    signed byte has magnitudes (the method of NVIDIA's calibrators, GTC 2017, "8-bit inference with TensorRT").
    """
    counts = histogram.counts.reshape(_ENTROPY_BINS, -1).sum(axis=1).astype(np.float64)
    used = int(np.flatnonzero(counts)[-1]) + 1 if counts.any() else 0
    if used <= LEVELS:
        return histogram.largest
    cuts = [*range(LEVELS, used, _ENTROPY_STEP), used]
    best = min(cuts, key=lambda cut: _divergence(counts, cut))
    return float(best * histogram.width / _ENTROPY_BINS)


def expected_error(histogram: Histogram, found: Range, form: Format) -> float:
    """Mean squared error of 8 bits with this range over the values seen: rounding within, saturation beyond."""
    if not histogram.counts.any():
        return 0.0
    scale, _ = form.scale(found.low, found.high)
    width = histogram.width / BINS
    centres = (np.arange(BINS) + 0.5) * width
    kept = centres.clip(max=max(-found.low, found.high))
    steps = form.step(kept / scale) * scale
    rounding = np.where(steps > 2 * width, np.square(kept - np.rint(kept / steps) * steps), steps**2 / 12)
    errors = np.where(centres > kept, np.square(centres - kept), rounding)
    return float(np.average(errors, weights=histogram.counts))


def _divergence(counts: NDArray[np.float64], cut: int) -> float:
    expected = counts[:cut].copy()
    expected[-1] += counts[cut:].sum()
    starts = np.arange(LEVELS) * cut // LEVELS
    filled = counts[:cut] > 0
    members = np.add.reduceat(filled.astype(np.float64), starts)
    means = np.add.reduceat(counts[:cut], starts) / np.maximum(members, 1)
    found = np.where(filled, np.repeat(means, np.diff(np.append(starts, cut))), 0.0)
    p, q = expected / max(expected.sum(), 1.0), found / max(found.sum(), 1.0)
    told = p > 0
    return float((p[told] * np.log(p[told] / np.maximum(q[told], _TINY))).sum())
