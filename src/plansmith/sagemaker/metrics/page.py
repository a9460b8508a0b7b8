"""One self-contained HTML page with plots of the metrics of an endpoint: needs no network and runs no script."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from plansmith import __version__
from plansmith.report.line_plot import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    WIDTH,
    Axis,
    LinePlot,
    Series,
    axis_from_zero,
    line_plot,
)
from plansmith.report.numbers import amount
from plansmith.report.templating import template_environment
from plansmith.report.verdict import Tile
from plansmith.sagemaker.metrics.definitions import PERCENTILES, TOTAL_LATENCY, Unit
from plansmith.sagemaker.metrics.text import (
    describe_variant,
    format_period,
    format_range,
    format_total,
    metric_table,
)
from plansmith.sagemaker.metrics.values import AVERAGE, SUM, EndpointMetrics, VariantMetrics

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
class VariantSection:
    """The part of the page about a variant."""

    name: str
    description: str
    reason_for_no_requests: str
    tiles: tuple[Tile, ...]
    plots: tuple[LinePlot, ...]


def render_page(metrics: EndpointMetrics) -> str:
    """The whole page."""
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
        values = [value for one in series for _, value in one.points if value is not None]
        if values:
            yield _plot(title, unit, series, across, values)


def _plot(title: str, unit: Unit, series: Sequence[Series], across: Axis, values: Sequence[float]) -> LinePlot:
    def format_value(value: float) -> str:
        return amount(value, unit)

    return line_plot(title, series, across, axis_from_zero(values, format_value, whole=unit == "count"), format_value)


def _with_breaks(
    points: Sequence[tuple[datetime, float]], period_seconds: int, end: float
) -> Iterator[tuple[float, float | None]]:
    """Points at the middle of their periods, and a break where some are missing between two of them."""
    previous: datetime | None = None
    for time, value in points:
        middle = min(time.timestamp() + period_seconds / 2, end)
        if previous is not None and (time - previous).total_seconds() > 1.5 * period_seconds:
            yield middle, None
        yield middle, value
        previous = time


def _notches(start: float, end: float) -> Iterator[tuple[float, str]]:
    step = next((one for one in _NOTCH_STEPS if (end - start) / one <= _MAX_NOTCHES), _NOTCH_STEPS[-1])
    time = math.ceil(start / step) * step
    while time <= end:
        form = "%m-%d" if step >= _DAY or time % _DAY == 0 else "%H:%M"
        yield time, datetime.fromtimestamp(time, UTC).strftime(form)
        time += step
