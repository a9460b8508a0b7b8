"""Number formatting of reports; no line breaks between a number and its unit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from plansmith.records.validation import (
    AGAINST,
    OutputAgreement,
    OutputComparison,
    TaskMetric,
    Tolerance,
    ValidationReport,
)

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_MOST_DIGITS = 9
_LEAST_DIGITS = 4

# What the gate writes where two answers cannot be compared.
_INCOMPARABLE = 1e300

EXACT_DB = 150.0
"""FP32 cannot tell signals apart that are nearer than this."""

LOOSEST_COSINE = -1.0
"""A limit that every cosine keeps, and so none."""


def relative(value: float) -> str:
    """Format an error relative to the output's magnitude: 3.6 ×, 3.1 %, 0.42 %, 2.4 × 10⁻⁶."""
    if not math.isfinite(value) or value >= _INCOMPARABLE:
        return "none"
    if value == 0:
        return "0"
    if value >= 1000:
        return f"{value:,.0f}\N{NO-BREAK SPACE}×"
    if value >= 1:
        return f"{_significant(value, 2)}\N{NO-BREAK SPACE}×"
    if value >= 0.001:
        return f"{_significant(100 * value, 2)}\N{NO-BREAK SPACE}%"
    return scientific(value)


def limit(value: float) -> str:
    """Format the limit of a relative error, as short as possible: 10 ×, 80 %, 0.3 %, 10⁻⁴."""
    if 1 <= value < 1000:
        return f"{value:.3g}\N{NO-BREAK SPACE}×"
    return f"{100 * value:.3g}\N{NO-BREAK SPACE}%" if 0.001 <= value < 1 else relative(value)


def scientific(value: float) -> str:
    """Format a small number in scientific notation: 2.4 × 10⁻⁶, 10⁻⁴."""
    digits, _, power = f"{value:.1e}".partition("e")
    raised = f"10{str(int(power)).translate(_SUPERSCRIPT)}"
    return raised if digits == "1.0" else f"{digits.removesuffix('.0')}\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}{raised}"


def cosine(value: float) -> str:
    """Format a cosine with enough digits to differ from 1, truncated rather than rounded up."""
    if not math.isfinite(value):
        return "none"
    missing = 1 - value
    if missing <= 0:
        return "1"
    digits = min(max(_LEAST_DIGITS, math.ceil(-math.log10(missing) - 1e-6) + 1), _MOST_DIGITS)
    scale = 10**digits
    text = f"{math.floor(value * scale + 1e-6) / scale:.{digits}f}"
    return text.replace("-", "−")


def limit_of_cosine(value: float) -> str:
    """Format a cosine limit as configured: 0.98, 0.99999."""
    return f"{value:.{_MOST_DIGITS}f}".rstrip("0").rstrip(".").replace("-", "−")


def decibels(value: float) -> str:
    """Format a signal-to-noise ratio: 23.4 dB; "exact" without any difference."""
    if math.isnan(value):
        return "none"
    return "exact" if value >= EXACT_DB else f"{value:.1f}\N{NO-BREAK SPACE}dB".replace("-", "−")


def percent(share: float, digits: int = 1) -> str:
    """Format a share: 98.4 %."""
    return f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"


def measure(value: float) -> str:
    """Format a task metric: 0.9121."""
    return "none" if math.isnan(value) else f"{value:.4f}".replace("-", "−")


def signed(value: float) -> str:
    """Format a change of a task metric: +0.0040, −0.0121, 0.0000."""
    shown = measure(abs(value))
    sign = "" if float(f"{value:.4f}") == 0 else "−" if value < 0 else "+"
    return f"{sign}{shown}"


def times(value: float) -> str:
    """Format a ratio: 2.31×, 140×."""
    if not math.isfinite(value):
        return "any number of times"
    return f"{value:,.{2 if value < 10 else 1 if value < 100 else 0}f}×"


def milliseconds(value: float) -> str:
    """Format a latency with three significant digits: 0.0421 ms, 1.23 ms, 1,180 ms."""
    return f"{value:,.0f}\N{NO-BREAK SPACE}ms" if value >= 1000 else f"{value:.3g}\N{NO-BREAK SPACE}ms"


def amount(value: float, unit: Literal["ms", "percent", "count"]) -> str:
    """Format a value with its unit: 1,234, 41 %, 12.3 ms, 14.2 s."""
    if unit == "count":
        return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.3g}"
    if unit == "percent":
        return f"{value:.0f} %" if value >= 10 or value == 0 else f"{value:.2g} %"
    if value >= 10_000:
        return f"{value / 1000:,.1f} s"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def width(part: float | None, whole: float | None) -> str:
    """Return the CSS width of a bar."""
    return f"{100 * min((part or 0.0) / whole, 1):.1f}%" if whole else "0%"


def shape(sizes: tuple[int, ...]) -> str:
    """Format a shape: 8 × 128 × 384; "scalar" for none."""
    return "\N{NO-BREAK SPACE}× ".join(map(str, sizes)) or "scalar"


def _significant(value: float, digits: int) -> str:
    """Format a positive number with a number of significant digits, never in scientific notation."""
    if value == 0:
        return "0"
    after = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(after, 0)}f}"


def relative_entropy(nats: float) -> str:
    """Format a Kullback-Leibler divergence: 0.012 nats, 3.1 × 10⁻⁵ nats."""
    if not math.isfinite(nats):
        return "none"
    if nats <= 0:
        return "0\N{NO-BREAK SPACE}nats"
    return f"{_significant(nats, 2) if nats >= 0.001 else scientific(nats)}\N{NO-BREAK SPACE}nats"


@dataclass(frozen=True)
class Margin:
    """Margin of one figure to its limit.

    Args:
        quantity: the figure's name.
        where: the output and the case, or the samples.
        value: the figure in words.
        limit: its limit in words.
        used: the part of what is allowed that it takes up; above 1 is too much.
        limit_name: what `used` is a part of.
    """

    quantity: str
    where: str
    value: str
    limit: str
    used: float
    limit_name: str = "what is allowed"

    @property
    def width(self) -> str:
        """The CSS width of a bar whose full length is the limit."""
        return f"{100 * min(self.used, 1):.1f}%"

    @property
    def limit_at(self) -> str:
        """The CSS position of the limit on a bar that shows the complete figure."""
        return f"{100 / max(self.used, 1):.1f}%"

    @property
    def in_words(self) -> str:
        """The distance from the limit, or beyond it, as text."""
        if self.breached:
            return f"{times(self.used)} {self.limit_name}"
        return f"{100 * self.used:.0f} % of {self.limit_name}"

    @property
    def breached(self) -> bool:
        """Whether the limit is exceeded."""
        return self.used > 1


def nearest(report: ValidationReport) -> Margin | None:
    """Return the figure nearest to its limit, or farthest beyond it; None if nothing was measured."""
    return max(every(report), key=lambda margin: margin.used, default=None)


def every(report: ValidationReport) -> Iterator[Margin]:
    """Return all figures that have a limit."""
    for comparison in report.comparisons:
        if comparison.elements:
            yield from of_comparison(comparison, report.tolerances[comparison.output])
    for corner in report.at_corners:
        if corner.found.elements:
            beside = f", beside {AGAINST[corner.against]}"
            yield from of_comparison(corner.found, report.tolerances[corner.found.output], beside)
    if report.evaluation is not None:
        for agreement in report.evaluation.agreements:
            yield from of_agreement(agreement, report.tolerances[agreement.output])
        yield from (of_metric(metric) for metric in report.evaluation.metrics)


def of_comparison(comparison: OutputComparison, allowed: Tolerance, beside: str = "") -> tuple[Margin, Margin, Margin]:
    """Return largest error, 99 % quantile and smallest cosine at one shape; `beside`: what it is compared with."""
    where = f"{comparison.output} at {comparison.case}, {shape(comparison.shape)}{beside}"
    return (
        _error("largest error", where, comparison.max_relative, allowed.max_relative),
        _error("99 % quantile of the error", where, comparison.quantile_relative, allowed.quantile_relative),
        _cosine("smallest cosine", where, comparison.min_cosine, allowed.min_cosine),
    )


def of_agreement(agreement: OutputAgreement, allowed: Tolerance) -> tuple[Margin, ...]:
    """Return mean and smallest cosine of the held-out samples, where limited.

    What the gate let pass is not over a limit of its own: such a tolerance was not meant for the held-out samples.
    """
    where = f"{agreement.output} on {agreement.samples:,} held-out samples"
    margins = (
        _cosine("mean cosine", where, agreement.mean_cosine, allowed.min_mean_cosine),
        _cosine("smallest cosine", where, agreement.min_cosine, allowed.min_cosine),
    )
    limits = (allowed.min_mean_cosine, allowed.min_cosine)
    pairs = zip(margins, limits, strict=True)
    return tuple(m for m, limit in pairs if limit > LOOSEST_COSINE and (agreement.failures or not m.breached))


def of_metric(metric: TaskMetric) -> Margin:
    """Return how much of the allowed loss of a task metric is used up."""
    return Margin(
        quantity=f"loss of {metric.name}",
        where=f"{metric.samples:,} held-out samples",
        value=signed(metric.change.value),
        limit=f"at most {measure(metric.max_drop)} lost",
        used=_part(max(-metric.change.value, 0.0), metric.max_drop),
    )


def _error(label: str, where: str, value: float, allowed: float) -> Margin:
    return Margin(label, where, relative(value), f"at most {limit(allowed)}", _part(value, allowed))


def _cosine(label: str, where: str, value: float, limit: float) -> Margin:
    allowed = f"at least {limit_of_cosine(limit)}"
    used = _part(max(1 - value, 0.0), 1 - limit)
    return Margin(label, where, cosine(value), allowed, used, "the allowed distance from 1")


def _part(value: float, limit: float) -> float:
    if math.isnan(value):
        return math.inf
    if limit > 0:
        return value / limit
    return 0.0 if value <= 0 else math.inf
