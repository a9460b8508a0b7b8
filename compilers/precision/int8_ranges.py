"""From what a tensor held to the range that 8 bits cover: MinMax, percentile and entropy, in bounded memory.

However much data streams by, a tensor costs one histogram of magnitudes. Its width doubles when a larger value comes,
by adding neighbouring bins: counts stay exact, and at least half of the bins lie within the values' range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from plansmith.lowering_options import Calibration

BINS = 4096
PERCENTILE = 99.99
"""Of the magnitudes; what lies beyond saturates."""

LEVELS = 128
"""Magnitudes that a signed byte tells apart."""

_ENTROPY_BINS = 2048
_ENTROPY_STEP = 8
_TINY = 1e-12


@dataclass
class Histogram:
    """Magnitudes of a tensor's values, with the lowest and the highest value; zeros are counted like all others."""

    lowest: float = 0.0
    highest: float = 0.0
    width: float = 0.0
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))
    _zeros: int = 0

    def update(self, values: NDArray[np.float32]) -> None:
        """Take in a batch of values of any shape; NaN and infinite ones say nothing about a range."""
        finite = values[np.isfinite(values)]
        if not finite.size:
            return
        self.lowest = min(self.lowest, float(finite.min()))
        self.highest = max(self.highest, float(finite.max()))
        largest = max(-self.lowest, self.highest)
        if largest == 0.0:
            self._zeros += finite.size
            return
        if self.width == 0.0:
            self.width = largest
            self.counts[0] = self._zeros
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

    def symmetric(self) -> tuple[float, int]:
        """Scale and zero point for signed bytes: zero is zero."""
        return (max(-self.low, self.high) or 1.0) / 127, 0

    def asymmetric(self) -> tuple[float, int]:
        """Scale and zero point for unsigned bytes, from the lowest value to the highest."""
        scale = (self.high - self.low or 1.0) / 255
        return scale, round(-self.low / scale)


def choose(histogram: Histogram, calibration: Calibration) -> Range:
    """The range that a calibration takes; "auto" takes the one of the three with the least expected squared error."""
    limits = {"minmax": minmax, "percentile": percentile, "entropy": entropy}
    tried = limits if calibration == "auto" else {calibration: limits[calibration]}
    found = {how: min(limit(histogram), histogram.largest) for how, limit in tried.items()}
    how = min(found, key=lambda name: expected_error(histogram, found[name]))
    return Range(low=max(histogram.lowest, -found[how]), high=min(histogram.highest, found[how]), how=how)


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
    cuts = range(LEVELS, used + 1, _ENTROPY_STEP)
    best = min(cuts, key=lambda cut: _divergence(counts, cut))
    return best * histogram.width / _ENTROPY_BINS


def expected_error(histogram: Histogram, limit: float) -> float:
    """Mean squared error of signed bytes up to this magnitude: rounding within, saturation beyond."""
    if limit <= 0.0 or not histogram.counts.any():
        return 0.0
    centres = (np.arange(BINS) + 0.5) * (histogram.width / BINS)
    beyond = centres > limit
    clipped = float((histogram.counts[beyond] * np.square(centres[beyond] - limit)).sum())
    within = float(histogram.counts[~beyond].sum()) * (limit / 127) ** 2 / 12
    return (clipped + within) / float(histogram.counts.sum())


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
