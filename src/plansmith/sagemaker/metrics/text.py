"""Metrics of an endpoint as people read them, and the rows of a table of them."""

from __future__ import annotations

from dataclasses import dataclass

from plansmith.report.numbers import amount
from plansmith.sagemaker.metrics.definitions import METRICS, METRICS_BY_NAME, PERCENTILES, TOTAL_LATENCY
from plansmith.sagemaker.metrics.values import EndpointMetrics, MetricStatistic, VariantMetrics

NO_VALUE = "none"

_AVERAGES_OF_SHARES = {"ModelCacheHit"}
_STATISTIC_LABELS = {"Average": "mean", "Maximum": "largest", "SampleCount": "count", "Sum": ""}
_ERRORS = ("Invocation4XXErrors", "Invocation5XXErrors", "InvocationModelErrors")


@dataclass(frozen=True)
class MetricRow:
    """A row of the table: a label, and a cell for each variant."""

    label: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class MetricTable:
    """The rows that have a value of any variant; `absent` are the labels of metrics that have none."""

    rows: tuple[MetricRow, ...]
    absent: tuple[str, ...]


def metric_table(metrics: EndpointMetrics) -> MetricTable:
    """The values over the whole range, a column for each variant."""
    rows: list[MetricRow] = []
    absent: list[str] = []
    for name, statistics in _listed_metrics():
        candidates = [_row(name, statistic, metrics) for statistic in statistics]
        with_values = [row for row in candidates if any(cell != NO_VALUE for cell in row.cells)]
        rows += with_values
        absent += [] if with_values else [_label(name)]
    return MetricTable(tuple(rows), tuple(absent))


def format_total(statistic: MetricStatistic) -> str:
    """A value over the whole range with its unit, or that there is none."""
    if statistic.total is None:
        return NO_VALUE
    return f"{'at most ' if statistic.is_upper_bound else ''}{amount(statistic.total, statistic.unit)}"


def format_period(seconds: int) -> str:
    """The period of a point: a minute, 5 minutes, an hour."""
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds % size == 0:
            number = seconds // size
            return ("an hour" if unit == "hour" else f"a {unit}") if number == 1 else f"{number} {unit}s"
    return f"{seconds} s"


def format_range(metrics: EndpointMetrics) -> str:
    """From when to when: 2026-11-23 10:00 to 13:00 UTC."""
    same_day = metrics.start.date() == metrics.end.date()
    return f"{metrics.start:%Y-%m-%d %H:%M} to {metrics.end:{'%H:%M' if same_day else '%Y-%m-%d %H:%M'}} UTC"


def describe_variant(variant: VariantMetrics) -> str:
    """What runs: 2 of ml.g5.xlarge, weight 1."""
    instances = "" if variant.instances is None else f"{variant.instances} of "
    machines = f"{instances}{variant.instance_type}" if variant.instance_type else ""
    weight = "shadow" if variant.shadow else "" if variant.weight is None else f"weight {variant.weight:g}"
    return ", ".join(part for part in (machines, weight) if part)


def _listed_metrics() -> list[tuple[str, tuple[str, ...]]]:
    """The metrics in order; the total latency follows its parts."""
    listed = [(metric.name, metric.statistics) for metric in METRICS]
    place = 1 + [name for name, _ in listed].index("OverheadLatency")
    return [*listed[:place], (TOTAL_LATENCY, ("Average",)), *listed[place:]]


def _row(name: str, statistic: str, metrics: EndpointMetrics) -> MetricRow:
    cells = [_cell(variant, name, statistic) for variant in metrics.variants]
    plain = name in _AVERAGES_OF_SHARES
    suffix = "" if plain else statistic if statistic in PERCENTILES else _STATISTIC_LABELS[statistic]
    return MetricRow(f"{_label(name)}, {suffix}" if suffix else _label(name), tuple(cells))


def _cell(variant: VariantMetrics, name: str, statistic: str) -> str:
    value = variant.statistic(name, statistic)
    invocations = variant.total("Invocations")
    rate = ""
    if name in _ERRORS and value.total and invocations:
        rate = f" ({amount(100 * value.total / invocations, 'percent')})"
    return format_total(value) + rate


def _label(name: str) -> str:
    return "total latency" if name == TOTAL_LATENCY else METRICS_BY_NAME[name].label
