"""Endpoint metric values in readable units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from plansmith.errors import UsageError
from plansmith.records.model import Record
from plansmith.sagemaker.description import EndpointDescription, VariantDescription
from plansmith.sagemaker.metrics.cloudwatch import (
    METRICS,
    METRICS_BY_NAME,
    PERCENTILES,
    TOTAL_LATENCY,
    Metric,
    MetricQuery,
    Points,
    TimeRange,
    Unit,
    cloudwatch_service,
    read_points,
)

SUM, SAMPLE_COUNT, AVERAGE = "Sum", "SampleCount", "Average"
_NEW_SECONDS = 300


class MetricStatistic(Record):
    """Statistic of a variant's metric.

    Attributes:
        metric: CloudWatch's name of the metric.
        statistic: CloudWatch's name of the statistic.
        unit: of all values.
        total: over the whole range; None where CloudWatch has nothing, which is not the same as zero.
        is_upper_bound: whether `total` is the largest of several percentiles, as of a range beyond 30 days.
        points: values over time; each point is named by the beginning of its period, in UTC.
    """

    metric: str
    statistic: str
    unit: Unit
    total: float | None = None
    is_upper_bound: bool = False
    points: tuple[tuple[datetime, float], ...] = ()


class VariantMetrics(Record):
    """All metric statistics of a variant.

    Attributes:
        name: of the variant.
        shadow: whether it gets copies of requests and answers nobody.
        weight: its part of the requests.
        instances: how many run.
        instance_type: of them.
        statistics: one for each metric and statistic.
    """

    name: str
    shadow: bool
    weight: float | None
    instances: int | None
    instance_type: str
    statistics: tuple[MetricStatistic, ...]

    def statistic(self, metric: str, statistic: str = SUM) -> MetricStatistic:
        """Return the statistic of a metric, by CloudWatch's names."""
        return next(entry for entry in self.statistics if (entry.metric, entry.statistic) == (metric, statistic))

    def total(self, metric: str, statistic: str = SUM) -> float | None:
        """Return the value over the whole range; None if CloudWatch has nothing."""
        return self.statistic(metric, statistic).total

    @property
    def is_empty(self) -> bool:
        """Whether CloudWatch has no values at all."""
        return all(statistic.total is None for statistic in self.statistics)

    @property
    def errors(self) -> float | None:
        """Failed requests: 4XX and 5XX, or model errors where these are more, as with timeouts."""
        by_status = [self.total(name) for name in ("Invocation4XXErrors", "Invocation5XXErrors")]
        counts = [count for count in by_status if count is not None]
        model_errors = self.total("InvocationModelErrors")
        if not counts and model_errors is None:
            return None
        return max(sum(counts), model_errors or 0.0)

    @property
    def error_rate(self) -> float | None:
        """The share of failed requests, from 0 to 1; None without requests."""
        invocations = self.total("Invocations")
        return (self.errors or 0.0) / invocations if invocations else None


class EndpointMetrics(Record):
    """Metrics of an endpoint's variants in a time range.

    Attributes:
        endpoint: its name.
        region: where it is.
        status: SageMaker's.
        created: when, in UTC.
        start: of the range, at a multiple of the period.
        end: of the range.
        period_seconds: of a point.
        read: when CloudWatch was asked.
        variants: in the endpoint's order.
    """

    endpoint: str
    region: str
    status: str
    created: datetime
    start: datetime
    end: datetime
    period_seconds: int
    read: datetime
    variants: tuple[VariantMetrics, ...]

    def reason_for_no_requests(self, variant: VariantMetrics) -> str:
        """Return why a variant has no requests in the range, as far as known; empty if it has some."""
        if variant.total("Invocations"):
            return ""
        if self.status == "Creating":
            return "the endpoint is being created, and has no metrics yet"
        if self.end <= self.created:
            return f"the endpoint was created after that, at {self.created:%Y-%m-%d %H:%M} UTC"
        if not variant.is_empty:
            return "there were no invocations in that time"
        if (self.read - self.created).total_seconds() < _NEW_SECONDS:
            return "the endpoint is new: CloudWatch has metrics a few minutes after the first instance runs"
        return f"CloudWatch has no metrics of it in {self.region} in that time"


def read_metrics(
    endpoint: EndpointDescription,
    times: TimeRange,
    *,
    variants: Sequence[str] = (),
    now: datetime | None = None,
) -> EndpointMetrics:
    """Read the metrics of an endpoint in a time range.

    Args:
        endpoint: the endpoint.
        times: the range, and the period of a point.
        variants: names of variants; all of them when empty.
        now: when it is read.

    Raises:
        UsageError: the endpoint has no such variant.
        EnvironmentFault: CloudWatch cannot be asked.
    """
    selected = select_variants(endpoint, variants)
    service = cloudwatch_service(endpoint.name, endpoint.region)
    try:
        queries = [query for variant in selected for query in _queries(variant.name, times)]
        points = read_points(service, endpoint.name, queries, times.start, times.end)
    finally:
        service.close()
    return EndpointMetrics(
        endpoint=endpoint.name,
        region=endpoint.region,
        status=endpoint.status,
        created=endpoint.created,
        start=times.start,
        end=times.end,
        period_seconds=times.period_seconds,
        read=now or datetime.now(UTC),
        variants=tuple(_variant_metrics(variant, times, points) for variant in selected),
    )


def select_variants(endpoint: EndpointDescription, names: Sequence[str]) -> list[VariantDescription]:
    """Return the variants with these names; all if no name is given.

    Raises:
        UsageError: the endpoint has no such variant.
    """
    variant_names = [variant.name for variant in endpoint.variants]
    if unknown := [name for name in names if name not in variant_names]:
        raise UsageError(
            f"the endpoint {endpoint.name} has no variant {', '.join(map(repr, unknown))}",
            remedy=f"its variants: {', '.join(variant_names) or 'none'}",
        )
    return [variant for variant in endpoint.variants if not names or variant.name in names]


def _queries(variant: str, times: TimeRange) -> Iterator[MetricQuery]:
    """Return queries for all points; also for percentiles of the whole range, which points do not determine."""
    for metric in METRICS:
        statistics = dict.fromkeys(part for name in metric.statistics for part in _parts(name))
        yield from (_query(variant, metric, name, times.period_seconds) for name in statistics)
        if times.total_seconds != times.period_seconds:
            yield from (
                _query(variant, metric, name, times.total_seconds) for name in statistics if name in PERCENTILES
            )


def _parts(statistic: str) -> tuple[str, ...]:
    """Return the statistics for a mean (sum and count): a mean of means would be wrong."""
    return (SUM, SAMPLE_COUNT) if statistic == AVERAGE else (statistic,)


def _query(variant: str, metric: Metric, statistic: str, period_seconds: int) -> MetricQuery:
    return MetricQuery(variant, metric.namespace, metric.name, statistic, period_seconds)


def _variant_metrics(
    variant: VariantDescription, times: TimeRange, points: dict[MetricQuery, Points]
) -> VariantMetrics:
    statistics = [
        _statistic(variant.name, metric, name, times, points) for metric in METRICS for name in metric.statistics
    ]
    return VariantMetrics(
        name=variant.name,
        shadow=variant.shadow,
        weight=variant.weight,
        instances=variant.instances,
        instance_type=variant.instance_type,
        statistics=(*statistics, _total_latency(statistics)),
    )


def _statistic(
    variant: str, metric: Metric, statistic: str, times: TimeRange, points: dict[MetricQuery, Points]
) -> MetricStatistic:
    def values(name: str, period_seconds: int) -> dict[datetime, float]:
        return dict(points[_query(variant, metric, name, period_seconds)])

    parts = [values(name, times.period_seconds) for name in _parts(statistic)]
    percentiles = list(values(statistic, times.total_seconds).values()) if statistic in PERCENTILES else []
    scale = 1.0 if statistic == SAMPLE_COUNT else metric.scale
    over_time = _means(*parts) if statistic == AVERAGE else parts[0]
    total = _total(statistic, [list(part.values()) for part in parts], percentiles)
    return MetricStatistic(
        metric=metric.name,
        statistic=statistic,
        unit="count" if statistic == SAMPLE_COUNT else metric.unit,
        total=None if total is None else total * scale,
        is_upper_bound=len(percentiles) > 1,
        points=tuple((time, value * scale) for time, value in over_time.items()),
    )


def _means(sums: dict[datetime, float], counts: dict[datetime, float]) -> dict[datetime, float]:
    return {time: value / counts[time] for time, value in sums.items() if counts.get(time)}


def _total(statistic: str, parts: Sequence[Sequence[float]], percentiles: Sequence[float]) -> float | None:
    """Return a statistic of the whole range, from its points or from CloudWatch's percentiles over all data."""
    if statistic == AVERAGE:
        sums, counts = parts
        return sum(sums) / sum(counts) if sum(counts) else None
    values = percentiles if statistic in PERCENTILES else parts[0]
    if not values:
        return None
    return sum(values) if statistic in {SUM, SAMPLE_COUNT} else max(values)


def _total_latency(statistics: Sequence[MetricStatistic]) -> MetricStatistic:
    """Return the mean of container latency plus overhead, if both exist."""
    model, overhead = (
        next(entry for entry in statistics if (entry.metric, entry.statistic) == (name, AVERAGE))
        for name in ("ModelLatency", "OverheadLatency")
    )
    overhead_points = dict(overhead.points)
    return MetricStatistic(
        metric=TOTAL_LATENCY,
        statistic=AVERAGE,
        unit=METRICS_BY_NAME["ModelLatency"].unit,
        total=None if model.total is None or overhead.total is None else model.total + overhead.total,
        points=tuple((time, value + overhead_points[time]) for time, value in model.points if time in overhead_points),
    )
