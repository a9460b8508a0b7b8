"""Accuracy results at every shape and on the held-out samples, as table rows and positions on scales."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from plansmith import formatting
from plansmith.records.validation import (
    AGAINST,
    BaselineSpeed,
    OutputAgreement,
    PlanSpeed,
    TaskMetric,
    Tolerance,
    ValidationReport,
    baseline_name,
)
from plansmith.report import numbers
from plansmith.report.numbers import LOOSEST_COSINE, Margin
from plansmith.report.verdict import ReportFacts

_EDGE = 0.08  # of the scale of an interval, left free at both ends


@dataclass(frozen=True)
class ShapeRow:
    """One output at one shape; without margins if the answers could not be compared."""

    case: str
    shape: str
    probe: bool
    margins: tuple[Margin, ...]
    failures: tuple[str, ...]


@dataclass(frozen=True)
class OutputTable:
    """Table of one output at all shapes, with its limits: largest error, quantile, cosine."""

    output: str
    limits: tuple[str, str, str]
    rows: tuple[ShapeRow, ...]


@dataclass(frozen=True)
class AgreementRow:
    """Agreement of one output over the held-out samples."""

    output: str
    samples: str
    mean: str
    mean_limit: str
    smallest: str
    sqnr: str
    kl: str
    same_first: str
    first_five: str
    same_neighbour: str
    failures: tuple[str, ...]


@dataclass(frozen=True)
class MetricPlot:
    """Task metric plot with the interval of its change: positions in percent of the scale's width."""

    name: str
    samples: str
    reference: str
    candidate: str
    change: str
    interval: str
    allowed: str
    conclusion: str
    good: bool
    zero_at: str
    limit_at: str
    value_at: str
    low_at: str
    width: str
    failures: tuple[str, ...]


def shape_tables(facts: ReportFacts) -> tuple[OutputTable, ...]:
    """Return a table per output, in the order of the gate's report."""
    if facts.validation is None:
        return ()
    cases = facts.onnx.reference.cases if facts.onnx else ()
    probes = {case.name for case in cases if not case.in_range}
    tables = []
    for output in dict.fromkeys(c.output for c in facts.validation.comparisons):
        allowed = facts.validation.tolerances[output]
        rows = tuple(
            ShapeRow(
                case=comparison.case,
                shape=numbers.shape(comparison.shape),
                probe=comparison.case in probes,
                margins=numbers.of_comparison(comparison, allowed) if comparison.elements else (),
                failures=comparison.failures,
            )
            for comparison in facts.validation.comparisons
            if comparison.output == output
        )
        tables.append(OutputTable(output, limits_of(allowed), rows))
    return tuple(tables)


def limits_of(allowed: Tolerance) -> tuple[str, str, str]:
    """Format the limits: largest error, quantile and cosine."""
    return (
        f"at most {numbers.limit(allowed.max_relative)}",
        f"at most {numbers.limit(allowed.quantile_relative)}",
        f"at least {numbers.limit_of_cosine(allowed.min_cosine)}",
    )


def agreement_row(agreement: OutputAgreement, allowed: Tolerance) -> AgreementRow:
    """Return the agreement of one output over the held-out samples."""
    limit = allowed.min_mean_cosine
    return AgreementRow(
        output=agreement.output,
        samples=f"{agreement.samples:,}",
        mean=numbers.cosine(agreement.mean_cosine),
        mean_limit=f"at least {numbers.limit_of_cosine(limit)}" if limit > LOOSEST_COSINE else "",
        smallest=numbers.cosine(agreement.min_cosine),
        sqnr=numbers.decibels(agreement.sqnr_db),
        kl="" if agreement.kl is None else numbers.relative_entropy(agreement.kl),
        same_first="" if agreement.same_first is None else numbers.percent(agreement.same_first),
        first_five="" if agreement.first_among_five is None else numbers.percent(agreement.first_among_five),
        same_neighbour="" if agreement.same_neighbour is None else numbers.percent(agreement.same_neighbour),
        failures=agreement.failures,
    )


def metric_plot(metric: TaskMetric) -> MetricPlot:
    """Return a task metric with the interval of its change, plotted against zero and the allowed loss."""
    change = metric.change
    ends = (change.low, change.high, -metric.max_drop, 0.0)
    lowest, highest = min(ends), max(ends)
    span = (highest - lowest) or 1.0
    start, whole = lowest - _EDGE * span, (1 + 2 * _EDGE) * span

    def place(value: float) -> str:
        return f"{100 * (value - start) / whole:.2f}%"

    return MetricPlot(
        name=metric.name,
        samples=f"{metric.samples:,}",
        reference=numbers.measure(metric.reference),
        candidate=numbers.measure(metric.candidate),
        change=numbers.signed(change.value),
        interval=f"{numbers.signed(change.low)} to {numbers.signed(change.high)}",
        allowed=numbers.signed(-metric.max_drop),
        conclusion=_conclusion(metric),
        good=metric.proven and not metric.failures,
        zero_at=place(0.0),
        limit_at=place(-metric.max_drop),
        value_at=place(change.value),
        low_at=place(change.low),
        width=f"{100 * (change.high - change.low) / whole:.2f}%",
        failures=metric.failures,
    )


def _conclusion(metric: TaskMetric) -> str:
    if metric.failures:
        return "The loss is more than is allowed."
    if metric.proven:
        return "The whole interval is within what is allowed: the samples are enough to tell."
    return "A part of the interval is beyond what is allowed: more samples would be needed to tell."


@dataclass(frozen=True)
class CornerRow:
    """Profile corner: the plan's answer compared with a graph's; `place` is empty after another graph's row."""

    place: str
    comparison: str
    row: ShapeRow


@dataclass(frozen=True)
class CornerTable:
    """Table of one plan output at all corners, with its limits."""

    plan: str
    output: str
    limits: tuple[str, str, str]
    rows: tuple[CornerRow, ...]


@dataclass(frozen=True)
class SpeedRow:
    """Speed row of a baseline, or of the plan itself, which has no ratio; `problem` replaces figures."""

    name: str
    time: str
    note: str
    ratio: str
    interval: str
    verdict: str
    bar: str
    problem: str


@dataclass(frozen=True)
class SpeedTable:
    """Speed table of a plan at the opt shapes of one profile; `settings`: active settings, one per line."""

    plan: str
    profile: str
    shapes: str
    rows: tuple[SpeedRow, ...]
    settings: tuple[str, ...]


def corner_tables(validation: ValidationReport) -> Iterator[CornerTable]:
    """Return a table per output of every plan that ran."""
    for plan, output in dict.fromkeys((c.plan, c.found.output) for c in validation.at_corners):
        allowed = validation.tolerances[output]
        corners = [c for c in validation.at_corners if (c.plan, c.found.output) == (plan, output)]
        places = ["", *(f"{c.corner} of {c.profile}" for c in corners)]
        rows = [
            CornerRow(
                place="" if place == before else place,
                comparison=AGAINST[c.against],
                row=ShapeRow(
                    case=c.corner,
                    shape=numbers.shape(c.found.shape),
                    probe=False,
                    margins=numbers.of_comparison(c.found, allowed) if c.found.elements else (),
                    failures=c.found.failures,
                ),
            )
            for c, (before, place) in zip(corners, pairwise(places), strict=True)
        ]
        yield CornerTable(plan, output, limits_of(allowed), tuple(rows))


def speed_table(speed: PlanSpeed) -> SpeedTable:
    """Return the plan first, then its baselines."""
    slowest = max([speed.median_ms, *(b.median_ms for b in speed.baselines if b.median_ms is not None)])
    quantiles = (("p95", speed.p95_ms), ("p99", speed.p99_ms))
    notes = [f"{name} {numbers.milliseconds(value)}" for name, value in quantiles if value is not None]
    own = SpeedRow(
        name=f"This plan, {speed.precision.upper()}",
        time=numbers.milliseconds(speed.median_ms),
        note=", ".join([*notes, f"of {formatting.count(speed.repeats, 'run')}"]),
        ratio="",
        interval="",
        verdict="",
        bar=numbers.width(speed.median_ms, slowest),
        problem="",
    )
    settings = [f"This plan: {speed.setting}", *(f"{_named(b)}: {b.setting}" for b in speed.baselines if b.speed)]
    return SpeedTable(
        plan=speed.plan,
        profile=speed.profile,
        shapes=speed.shapes,
        rows=(own, *(_baseline_row(baseline, slowest) for baseline in speed.baselines)),
        settings=tuple(settings),
    )


def _baseline_row(baseline: BaselineSpeed, slowest: float) -> SpeedRow:
    speedup = baseline.speed
    return SpeedRow(
        name=_named(baseline),
        time="" if baseline.median_ms is None else numbers.milliseconds(baseline.median_ms),
        note="",
        ratio=numbers.times(speedup.ratio) if speedup else "",
        interval=f"{numbers.times(speedup.low)} to {numbers.times(speedup.high)}" if speedup else "",
        verdict=speedup.verdict if speedup else "",
        bar=numbers.width(baseline.median_ms, slowest),
        problem="" if speedup else baseline.problem,
    )


def _named(baseline: BaselineSpeed) -> str:
    name = baseline_name(baseline)
    return f"{name[0].upper()}{name[1:]}" if baseline.kind == "plan" else name
