"""What was measured at every shape and on the held-out samples, as rows of tables and places on scales."""

from __future__ import annotations

from dataclasses import dataclass

from plansmith.records.validation import OutputAgreement, TaskMetric, Tolerance
from plansmith.report import margins, numbers
from plansmith.report.facts import ReportFacts
from plansmith.report.margins import LOOSEST_COSINE, Margin

_EDGE = 0.08  # of the scale of an interval, left free at both ends


@dataclass(frozen=True)
class ShapeRow:
    """One output at one shape; no margins where the answers could not be compared."""

    case: str
    shape: str
    probe: bool
    margins: tuple[Margin, ...]
    failures: tuple[str, ...]


@dataclass(frozen=True)
class OutputTable:
    """One output at all shapes, and its limits: largest error, quantile, cosine."""

    output: str
    limits: tuple[str, str, str]
    rows: tuple[ShapeRow, ...]


@dataclass(frozen=True)
class AgreementRow:
    """One output over the held-out samples."""

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
    """A task's measure, and its change's interval on a scale: places in percent of the scale's width."""

    name: str
    samples: str
    reference: str
    candidate: str
    change: str
    interval: str
    allowed: str
    said: str
    good: bool
    zero_at: str
    limit_at: str
    value_at: str
    low_at: str
    width: str
    failures: tuple[str, ...]


def shape_tables(facts: ReportFacts) -> tuple[OutputTable, ...]:
    """A table for every output, in the order of the gate's report."""
    if facts.validation is None:
        return ()
    cases = facts.onnx.reference.cases if facts.onnx else ()
    probes = {case.name for case in cases if not case.in_range}
    tables = []
    for output in dict.fromkeys(c.output for c in facts.validation.comparisons):
        allowed = facts.validation.tolerances[output]
        rows = tuple(
            ShapeRow(
                case=found.case,
                shape=numbers.shape(found.shape),
                probe=found.case in probes,
                margins=margins.of_comparison(found, allowed) if found.elements else (),
                failures=found.failures,
            )
            for found in facts.validation.comparisons
            if found.output == output
        )
        tables.append(OutputTable(output, limits_of(allowed), rows))
    return tuple(tables)


def limits_of(allowed: Tolerance) -> tuple[str, str, str]:
    """Largest error, quantile and cosine that are allowed, in words."""
    return (
        f"at most {numbers.limit(allowed.max_relative)}",
        f"at most {numbers.limit(allowed.quantile_relative)}",
        f"at least {numbers.limit_of_cosine(allowed.min_cosine)}",
    )


def agreement_row(found: OutputAgreement, allowed: Tolerance) -> AgreementRow:
    """One output over the held-out samples."""
    limit = allowed.min_mean_cosine
    return AgreementRow(
        output=found.output,
        samples=f"{found.samples:,}",
        mean=numbers.cosine(found.mean_cosine),
        mean_limit=f"at least {numbers.limit_of_cosine(limit)}" if limit > LOOSEST_COSINE else "",
        smallest=numbers.cosine(found.min_cosine),
        sqnr=numbers.decibels(found.sqnr_db),
        kl="" if found.kl is None else numbers.relative_entropy(found.kl),
        same_first="" if found.same_first is None else numbers.percent(found.same_first),
        first_five="" if found.first_among_five is None else numbers.percent(found.first_among_five),
        same_neighbour="" if found.same_neighbour is None else numbers.percent(found.same_neighbour),
        failures=found.failures,
    )


def metric_plot(found: TaskMetric) -> MetricPlot:
    """A task's measure with the interval of its change drawn beside zero and the allowed loss."""
    change = found.change
    ends = (change.low, change.high, -found.max_drop, 0.0)
    lowest, highest = min(ends), max(ends)
    span = (highest - lowest) or 1.0
    start, whole = lowest - _EDGE * span, (1 + 2 * _EDGE) * span

    def place(value: float) -> str:
        return f"{100 * (value - start) / whole:.2f}%"

    return MetricPlot(
        name=found.name,
        samples=f"{found.samples:,}",
        reference=numbers.measure(found.reference),
        candidate=numbers.measure(found.candidate),
        change=numbers.signed(change.value),
        interval=f"{numbers.signed(change.low)} to {numbers.signed(change.high)}",
        allowed=numbers.signed(-found.max_drop),
        said=_said(found),
        good=found.proven and not found.failures,
        zero_at=place(0.0),
        limit_at=place(-found.max_drop),
        value_at=place(change.value),
        low_at=place(change.low),
        width=f"{100 * (change.high - change.low) / whole:.2f}%",
        failures=found.failures,
    )


def _said(found: TaskMetric) -> str:
    if found.failures:
        return "The loss is more than is allowed."
    if found.proven:
        return "The whole interval is within what is allowed: the samples are enough to tell."
    return "A part of the interval is beyond what is allowed: more samples would be needed to tell."
