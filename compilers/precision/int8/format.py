"""8-bit formats, and calibration ranges of tensors: MinMax, percentile and entropy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from plansmith.records.model import Precision

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from plansmith.config.engine_options import Calibration

    Floats = NDArray[np.floating]

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


@dataclass(frozen=True)
class Format:
    """An 8-bit format. A value is stored as its nearest code times a scale; values beyond the range saturate.

    Attributes:
        precision: what a recipe calls it.
        element: ONNX's number for it.
        least: the smallest code; 0 for codes without a sign, which have a zero point.
        largest: the largest code.
        opset: the first whose QuantizeLinear and DequantizeLinear have it.
        fraction_bits: of a floating-point code's significand, the hidden bit not counted; 0 for integers.
        smallest_exponent: of its normal codes; 0 for integers.
    """

    precision: Precision
    element: int
    least: float
    largest: float
    opset: int
    fraction_bits: int = 0
    smallest_exponent: int = 0

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The NumPy type; for FP8 that of ml_dtypes."""
        import onnx

        return onnx.helper.tensor_dtype_to_np_dtype(self.element)

    @property
    def label(self) -> str:
        """The name of its codes."""
        return "FLOAT8E4M3FN" if self.fraction_bits else f"{'' if self.least else 'un'}signed 8 bits"

    def scale(self, low: float, high: float) -> tuple[float, int]:
        """Return scale and zero point for values from `low` (0 or below) to `high` (0 or above); 0 stays exact."""
        if self.least < 0:
            return (max(-low, high) or 1.0) / self.largest, 0
        scale = (high - low or 1.0) / self.largest
        return scale, round(-low / scale)

    def narrowed(self, bits: int) -> Format:
        """Return a format of fewer integer bits in the same bytes."""
        return replace(self, largest=2 ** (bits - 1) - 1)

    def step(self, magnitudes: Floats) -> Floats:
        """Return the spacing of the codes around these magnitudes, in units of the scale: 1 for integers."""
        if not self.fraction_bits:
            return np.ones_like(magnitudes)
        exponents = np.frexp(np.maximum(magnitudes, 2.0**self.smallest_exponent))[1] - 1
        steps: Floats = np.ldexp(1.0, exponents - self.fraction_bits)
        return steps

    def codes(self, levels: Floats) -> NDArray[np.generic]:
        """Return the nearest codes to values in units of the scale; ties to even, as QuantizeLinear does."""
        inside = levels.clip(self.least, self.largest)
        return (inside if self.fraction_bits else np.rint(inside)).astype(self.dtype)

    def rounded(self, values: NDArray[np.float32], scale: float, zero: int = 0) -> NDArray[np.float32]:
        """Return the values after a Q/DQ pair."""
        inside = (values / scale).clip(self.least - zero, self.largest - zero)
        levels = inside.astype(self.dtype) if self.fraction_bits else np.rint(inside)
        back: NDArray[np.float32] = (levels.astype(np.float32) * scale).astype(np.float32)
        return back


INT8 = Format(Precision.INT8, element=3, least=-128, largest=127, opset=13)
UINT8 = Format(Precision.INT8, element=2, least=0, largest=255, opset=13)
FP8 = Format(Precision.FP8, element=17, least=-448, largest=448, opset=19, fraction_bits=3, smallest_exponent=-6)
"""FLOAT8E4M3FN: four bits of exponent, three of fraction, no infinity (arXiv:2209.05433)."""


@dataclass
class Histogram:
    """Histogram of a tensor's nonzero magnitudes, with the lowest and the highest value.

    Zeros are left out: eight bits hold them exactly, and behind a Relu they would outweigh all else.
    """

    lowest: float = 0.0
    highest: float = 0.0
    width: float = 0.0
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))

    def update(self, values: NDArray[np.float32]) -> None:
        """Update with a batch of values of any shape; NaN and infinity are ignored.

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
    """Quantization range of a tensor in 8 bits.

    Attributes:
        low: 0 or below.
        high: 0 or above.
        how: the calibration that chose it.
    """

    low: float
    high: float
    how: str


def choose(histogram: Histogram, calibration: Calibration, form: Format) -> Range:
    """Return the range that a calibration algorithm chooses for a format.

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
        value_range = Range(max(histogram.lowest, -largest), min(histogram.highest, largest), how)
        errors[value_range] = expected_error(histogram, value_range, form) * (1 if how == "minmax" else _SATURATION)
    return min(errors, key=errors.__getitem__)


def summarize_ranges(ranges: Mapping[str, Range]) -> str:
    """Summarize how many ranges each calibration algorithm chose."""
    ways = [value_range.how for value_range in ranges.values()]
    return ", ".join(f"{how} for {ways.count(how)}" for how in dict.fromkeys(ways))


def minmax(histogram: Histogram) -> float:
    """Max calibration: return the largest magnitude observed, so that nothing saturates."""
    return histogram.largest


def percentile(histogram: Histogram, share: float = PERCENTILE) -> float:
    """Percentile calibration: return the magnitude below which this percentage of all values is, to one bin."""
    cumulated = np.cumsum(histogram.counts)
    if not cumulated[-1]:
        return histogram.largest
    place = int(np.searchsorted(cumulated, cumulated[-1] * share / 100))
    return (place + 1) * histogram.width / BINS


def entropy(histogram: Histogram) -> float:
    """Entropy calibration: return the cutoff with the least Kullback-Leibler divergence of the distributions.

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


def expected_error(histogram: Histogram, value_range: Range, form: Format) -> float:
    """Return the mean squared error of 8 bits in this range over the observed values: rounding and saturation."""
    if not histogram.counts.any():
        return 0.0
    scale, _ = form.scale(value_range.low, value_range.high)
    width = histogram.width / BINS
    centres = (np.arange(BINS) + 0.5) * width
    clipped = centres.clip(max=max(-value_range.low, value_range.high))
    steps = form.step(clipped / scale) * scale
    rounding = np.where(steps > 2 * width, np.square(clipped - np.rint(clipped / steps) * steps), steps**2 / 12)
    errors = np.where(centres > clipped, np.square(centres - clipped), rounding)
    return float(np.average(errors, weights=histogram.counts))


def _divergence(counts: NDArray[np.float64], cut: int) -> float:
    expected = counts[:cut].copy()
    expected[-1] += counts[cut:].sum()
    starts = np.arange(LEVELS) * cut // LEVELS
    filled = counts[:cut] > 0
    members = np.add.reduceat(filled.astype(np.float64), starts)
    means = np.add.reduceat(counts[:cut], starts) / np.maximum(members, 1)
    actual = np.where(filled, np.repeat(means, np.diff(np.append(starts, cut))), 0.0)
    p, q = expected / max(expected.sum(), 1.0), actual / max(actual.sum(), 1.0)
    mask = p > 0
    return float((p[mask] * np.log(p[mask] / np.maximum(q[mask], _TINY))).sum())
