"""Endpoint metrics page: one self-contained HTML page with plots, without network access or scripts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from plansmith import __version__
from plansmith.report.numbers import amount
from plansmith.report.plots import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, Axis, LinePlot, Series, axis_from_zero, line_plot
from plansmith.report.templating import template_environment
from plansmith.report.verdict import Tile
from plansmith.sagemaker.metrics.cloudwatch import METRICS, METRICS_BY_NAME, PERCENTILES, TOTAL_LATENCY, Unit
from plansmith.sagemaker.metrics.values import AVERAGE, SUM, EndpointMetrics, MetricStatistic, VariantMetrics

NO_VALUE = "none"

_AVERAGES_OF_SHARES = {"ModelCacheHit"}
_STATISTIC_LABELS = {"Average": "mean", "Maximum": "largest", "SampleCount": "count", "Sum": ""}
_ERRORS = ("Invocation4XXErrors", "Invocation5XXErrors", "InvocationModelErrors")

_PACKAGE = "plansmith.sagemaker.metrics"
_TEMPLATE = "endpoint.html"
_DAY = 86400
_MAX_NOTCHES = 5
_NOTCH_STEPS = (300, 900, 1800, 3600, 7200, 21600, 43200, _DAY, 2 * _DAY, 7 * _DAY, 30 * _DAY, 90 * _DAY)
_PLOTS: tuple[tuple[str, Unit, tuple[tuple[str, str, str], ...]], ...] = (
    ("Container latency", "ms", tuple((name, "ModelLatency", name) for name in PERCENTILES)),
    (
        "Mean latency and its parts",
        "ms",
        (
            ("total", TOTAL_LATENCY, AVERAGE),
            ("container", "ModelLatency", AVERAGE),
            ("overhead", "OverheadLatency", AVERAGE),
        ),
    ),
    ("Invocations", "count", (("all", "Invocations", SUM), ("per instance", "InvocationsPerInstance", SUM))),
    (
        "Errors",
        "count",
        (
            ("4XX", "Invocation4XXErrors", SUM),
            ("5XX", "Invocation5XXErrors", SUM),
            ("model", "InvocationModelErrors", SUM),
        ),
    ),
    ("GPU", "percent", (("utilization", "GPUUtilization", AVERAGE), ("memory", "GPUMemoryUtilization", AVERAGE))),
    (
        "CPU, memory and disk",
        "percent",
        (
            ("CPU", "CPUUtilization", AVERAGE),
            ("memory", "MemoryUtilization", AVERAGE),
            ("disk", "DiskUtilization", AVERAGE),
        ),
    ),
    (
        "Loaded models per instance",
        "count",
        (("mean", "LoadedModelCount", AVERAGE), ("largest", "LoadedModelCount", "Maximum")),
    ),
    ("Requests to a loaded model", "percent", (("cache hits", "ModelCacheHit", AVERAGE),)),
    (
        "Loading and unloading of models",
        "ms",
        (
            ("waiting", "ModelLoadingWaitTime", AVERAGE),
            ("downloading", "ModelDownloadingTime", AVERAGE),
            ("loading", "ModelLoadingTime", AVERAGE),
            ("unloading", "ModelUnloadingTime", AVERAGE),
        ),
    ),
)


@dataclass(frozen=True)
class MetricRow:
    """Table row: a label, and a cell per variant."""

    label: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class MetricTable:
    """Metric table: rows with a value of any variant; `absent` lists the labels of metrics without values."""

    rows: tuple[MetricRow, ...]
    absent: tuple[str, ...]


def metric_table(metrics: EndpointMetrics) -> MetricTable:
    """Return the values over the whole range, a column per variant."""
    rows: list[MetricRow] = []
    absent: list[str] = []
    for name, statistics in _listed_metrics():
        candidates = [_row(name, statistic, metrics) for statistic in statistics]
        with_values = [row for row in candidates if any(cell != NO_VALUE for cell in row.cells)]
        rows += with_values
        absent += [] if with_values else [_label(name)]
    return MetricTable(tuple(rows), tuple(absent))


def format_total(statistic: MetricStatistic) -> str:
    """Format a value over the whole range with its unit, or that there is none."""
    if statistic.total is None:
        return NO_VALUE
    return f"{'at most ' if statistic.is_upper_bound else ''}{amount(statistic.total, statistic.unit)}"


def format_period(seconds: int) -> str:
    """Format the period of a point: a minute, 5 minutes, an hour."""
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds % size == 0:
            number = seconds // size
            return ("an hour" if unit == "hour" else f"a {unit}") if number == 1 else f"{number} {unit}s"
    return f"{seconds} s"


def format_range(metrics: EndpointMetrics) -> str:
    """Format a time range: 2026-11-23 10:00 to 13:00 UTC."""
    same_day = metrics.start.date() == metrics.end.date()
    return f"{metrics.start:%Y-%m-%d %H:%M} to {metrics.end:{'%H:%M' if same_day else '%Y-%m-%d %H:%M'}} UTC"


def describe_variant(variant: VariantMetrics) -> str:
    """Describe what runs: 2 of ml.g5.xlarge, weight 1."""
    instances = "" if variant.instances is None else f"{variant.instances} of "
    machines = f"{instances}{variant.instance_type}" if variant.instance_type else ""
    weight = "shadow" if variant.shadow else "" if variant.weight is None else f"weight {variant.weight:g}"
    return ", ".join(part for part in (machines, weight) if part)


def _listed_metrics() -> list[tuple[str, tuple[str, ...]]]:
    """Return the metrics in order; the total latency follows its parts."""
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


@dataclass(frozen=True)
class VariantSection:
    """Variant section of the page."""

    name: str
    description: str
    reason_for_no_requests: str
    tiles: tuple[Tile, ...]
    plots: tuple[LinePlot, ...]


def render_page(metrics: EndpointMetrics) -> str:
    """Render the HTML page."""
    template = template_environment(_PACKAGE).get_template(_TEMPLATE)
    return template.render(
        plansmith=__version__,
        metrics=metrics,
        range=format_range(metrics),
        period=format_period(metrics.period_seconds),
        sections=[_section(metrics, variant) for variant in metrics.variants],
        table=metric_table(metrics),
        frame=(WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM),
    )


def _section(metrics: EndpointMetrics, variant: VariantMetrics) -> VariantSection:
    return VariantSection(
        name=variant.name,
        description=describe_variant(variant),
        reason_for_no_requests=metrics.reason_for_no_requests(variant),
        tiles=tuple(_tiles(variant)) if variant.total("Invocations") else (),
        plots=tuple(_plots(metrics, variant)),
    )


def _tiles(variant: VariantMetrics) -> Iterator[Tile]:
    yield Tile("Invocations", format_total(variant.statistic("Invocations")), "")
    if variant.error_rate is not None:
        note = f"{amount(variant.errors or 0.0, 'count')} failed"
        yield Tile("Errors", amount(100 * variant.error_rate, "percent"), note)
    for label, metric, statistic, note in (
        ("Container latency, p99", "ModelLatency", "p99", ""),
        ("Total latency, mean", TOTAL_LATENCY, AVERAGE, "container and overhead"),
        ("GPU, mean", "GPUUtilization", AVERAGE, "100 % for each GPU"),
    ):
        value = variant.statistic(metric, statistic)
        if value.total is not None:
            yield Tile(label, format_total(value), note)


def _plots(metrics: EndpointMetrics, variant: VariantMetrics) -> Iterator[LinePlot]:
    start, end = metrics.start.timestamp(), metrics.end.timestamp()
    across = Axis(start, end, tuple(_notches(start, end)))
    for title, unit, lines in _PLOTS:
        series = [
            Series(label, list(_with_breaks(variant.statistic(metric, statistic).points, metrics.period_seconds, end)))
            for label, metric, statistic in lines
        ]
        values = [value for curve in series for _, value in curve.points if value is not None]
        if values:
            yield _plot(title, unit, series, across, values)


def _plot(title: str, unit: Unit, series: Sequence[Series], across: Axis, values: Sequence[float]) -> LinePlot:
    def format_value(value: float) -> str:
        return amount(value, unit)

    return line_plot(title, series, across, axis_from_zero(values, format_value, whole=unit == "count"), format_value)


def _with_breaks(
    points: Sequence[tuple[datetime, float]], period_seconds: int, end: float
) -> Iterator[tuple[float, float | None]]:
    """Return points at the middle of their periods, with a break where periods between two points are missing."""
    previous: datetime | None = None
    for time, value in points:
        middle = min(time.timestamp() + period_seconds / 2, end)
        if previous is not None and (time - previous).total_seconds() > 1.5 * period_seconds:
            yield middle, None
        yield middle, value
        previous = time


def _notches(start: float, end: float) -> Iterator[tuple[float, str]]:
    step = next((width for width in _NOTCH_STEPS if (end - start) / width <= _MAX_NOTCHES), _NOTCH_STEPS[-1])
    time = math.ceil(start / step) * step
    while time <= end:
        form = "%m-%d" if step >= _DAY or time % _DAY == 0 else "%H:%M"
        yield time, datetime.fromtimestamp(time, UTC).strftime(form)
        time += step
