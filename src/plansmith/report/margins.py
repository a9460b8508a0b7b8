"""How much of what is allowed a candidate uses up, in one measure for every limit: 1 is at the limit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from plansmith.records.validation import (
    AGAINST,
    OutputAgreement,
    OutputComparison,
    TaskMetric,
    Tolerance,
    ValidationReport,
)
from plansmith.report import numbers

LOOSEST_COSINE = -1.0
"""A limit that every cosine keeps, and so none."""


@dataclass(frozen=True)
class Margin:
    """One figure beside its limit.

    Args:
        what: the figure's name.
        where: the output and the case, or the samples.
        value: the figure in words.
        limit: its limit in words.
        used: the part of what is allowed that it takes up; above 1 is too much.
        whole: what `used` is a part of.
    """

    what: str
    where: str
    value: str
    limit: str
    used: float
    whole: str = "what is allowed"

    @property
    def width(self) -> str:
        """The length of a bar whose whole is the limit, as CSS has it."""
        return f"{100 * min(self.used, 1):.1f}%"

    @property
    def limit_at(self) -> str:
        """Where the limit is on a bar that holds all of the figure, as CSS has it."""
        return f"{100 / max(self.used, 1):.1f}%"

    @property
    def in_words(self) -> str:
        """How far from the limit, or beyond it."""
        if self.breached:
            return f"{numbers.times(self.used)} {self.whole}"
        return f"{100 * self.used:.0f} % of {self.whole}"

    @property
    def breached(self) -> bool:
        """Whether the limit is not kept."""
        return self.used > 1


def nearest(report: ValidationReport) -> Margin | None:
    """The figure that is nearest to its limit, or farthest beyond it; None where nothing was measured."""
    return max(every(report), key=lambda margin: margin.used, default=None)


def every(report: ValidationReport) -> Iterator[Margin]:
    """All figures that have a limit."""
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


def of_comparison(found: OutputComparison, allowed: Tolerance, beside: str = "") -> tuple[Margin, Margin, Margin]:
    """Largest error, 99 % quantile and smallest cosine at one shape; `beside`: what it is compared with."""
    where = f"{found.output} at {found.case}, {numbers.shape(found.shape)}{beside}"
    return (
        _error("largest error", where, found.max_relative, allowed.max_relative),
        _error("99 % quantile of the error", where, found.quantile_relative, allowed.quantile_relative),
        _cosine("smallest cosine", where, found.min_cosine, allowed.min_cosine),
    )


def of_agreement(found: OutputAgreement, allowed: Tolerance) -> tuple[Margin, ...]:
    """Mean and smallest cosine of the held-out samples, where they have a limit.

    What the gate let pass is not over a limit of its own: such a tolerance was not meant for the held-out samples.
    """
    where = f"{found.output} on {found.samples:,} held-out samples"
    margins = (
        _cosine("mean cosine", where, found.mean_cosine, allowed.min_mean_cosine),
        _cosine("smallest cosine", where, found.min_cosine, allowed.min_cosine),
    )
    limits = (allowed.min_mean_cosine, allowed.min_cosine)
    held = zip(margins, limits, strict=True)
    return tuple(m for m, limit in held if limit > LOOSEST_COSINE and (found.failures or not m.breached))


def of_metric(found: TaskMetric) -> Margin:
    """How much of the allowed loss of a task's measure is used up."""
    return Margin(
        what=f"loss of {found.name}",
        where=f"{found.samples:,} held-out samples",
        value=numbers.signed(found.change.value),
        limit=f"at most {numbers.measure(found.max_drop)} lost",
        used=_part(max(-found.change.value, 0.0), found.max_drop),
    )


def _error(what: str, where: str, value: float, limit: float) -> Margin:
    allowed = f"at most {numbers.limit(limit)}"
    return Margin(what, where, numbers.relative(value), allowed, _part(value, limit))


def _cosine(what: str, where: str, value: float, limit: float) -> Margin:
    allowed = f"at least {numbers.limit_of_cosine(limit)}"
    used = _part(max(1 - value, 0.0), 1 - limit)
    return Margin(what, where, numbers.cosine(value), allowed, used, "the allowed distance from 1")


def _part(value: float, limit: float) -> float:
    if math.isnan(value):
        return math.inf
    if limit > 0:
        return value / limit
    return 0.0 if value <= 0 else math.inf
