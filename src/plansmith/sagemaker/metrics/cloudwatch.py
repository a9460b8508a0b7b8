"""CloudWatch queries for many statistics at once.

GetMetricData takes 500 queries a call and answers in pages:
docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_GetMetricData.html.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from plansmith.errors import EnvironmentFault, UsageError
from plansmith.formatting import format_seconds, seconds_from_age
from plansmith.system.aws.service import AwsService

Unit = Literal["ms", "percent", "count"]

INVOCATION_NAMESPACE = "AWS/SageMaker"
INSTANCE_NAMESPACE = "/aws/sagemaker/Endpoints"

PERCENTILES = ("p50", "p90", "p99")

TOTAL_LATENCY = "TotalLatency"
"""The mean latency of container and overhead together: each request counts once in both, so that means add up.
Percentiles do not, and CloudWatch has none of the sum. The way between client and SageMaker is in none of them."""

MAX_QUERIES = 500
Points = list[tuple[datetime, float]]
_DAY = 86400
_RETENTION = ((15 * _DAY, 60), (63 * _DAY, 300), (455 * _DAY, 3600))
_PERIODS = (60, 300, 900, 3600, 6 * 3600, _DAY)
_USUAL_POINTS = 300
_MAX_POINTS = 2000
MAX_PERIOD_SECONDS = 30 * _DAY
"""The longest period that CloudWatch's console offers."""


@dataclass(frozen=True)
class Metric:
    """CloudWatch metric.

    Attributes:
        name: CloudWatch's.
        namespace: CloudWatch's.
        label: for people.
        unit: of its values here.
        scale: from CloudWatch's unit to that.
        statistics: the useful ones, by CloudWatch's names.
    """

    name: str
    namespace: str
    label: str
    unit: Unit
    scale: float
    statistics: tuple[str, ...]


def _count(name: str, label: str) -> Metric:
    return Metric(name, INVOCATION_NAMESPACE, label, "count", 1.0, ("Sum",))


def _latency(name: str, label: str) -> Metric:
    return Metric(name, INVOCATION_NAMESPACE, label, "ms", 0.001, ("Average", *PERCENTILES, "Maximum"))


def _utilization(name: str, label: str) -> Metric:
    return Metric(name, INSTANCE_NAMESPACE, label, "percent", 1.0, ("Average", "Maximum"))


def _loading(name: str, label: str) -> Metric:
    return Metric(name, INVOCATION_NAMESPACE, label, "ms", 0.001, ("SampleCount", "Average", "Maximum"))


METRICS = (
    _count("Invocations", "invocations"),
    _count("InvocationsPerInstance", "invocations per instance"),
    _count("Invocation4XXErrors", "4XX errors"),
    _count("Invocation5XXErrors", "5XX errors"),
    _count("InvocationModelErrors", "model errors"),
    _latency("ModelLatency", "container latency"),
    _latency("OverheadLatency", "overhead latency"),
    _utilization("CPUUtilization", "CPU"),
    _utilization("MemoryUtilization", "memory"),
    _utilization("GPUUtilization", "GPU"),
    _utilization("GPUMemoryUtilization", "GPU memory"),
    _utilization("DiskUtilization", "disk"),
    Metric("LoadedModelCount", INSTANCE_NAMESPACE, "loaded models per instance", "count", 1.0, ("Average", "Maximum")),
    Metric("ModelCacheHit", INVOCATION_NAMESPACE, "requests to a loaded model", "percent", 100.0, ("Average",)),
    _loading("ModelLoadingWaitTime", "waiting for a model"),
    _loading("ModelDownloadingTime", "model downloading"),
    _loading("ModelLoadingTime", "model loading"),
    _loading("ModelUnloadingTime", "model unloading"),
)


METRICS_BY_NAME = {metric.name: metric for metric in METRICS}


@dataclass(frozen=True)
class MetricQuery:
    """Metric query: one statistic of one metric of a variant, as points of a period."""

    variant: str
    namespace: str
    metric: str
    statistic: str
    period_seconds: int


def cloudwatch_service(endpoint: str, region: str) -> AwsService:
    """Return the CloudWatch client in a region, for the metrics of an endpoint."""
    return AwsService(
        "cloudwatch",
        f"CloudWatch in {region}",
        region=region,
        settings="the region and the network",
        remedy="see what CloudWatch has: aws cloudwatch list-metrics --namespace AWS/SageMaker"
        f" --dimensions Name=EndpointName,Value={endpoint} --region {region}",
    )


def dimensions(endpoint: str, variant: str) -> list[dict[str, str]]:
    """Return the dimensions of a variant's metrics."""
    return [{"Name": "EndpointName", "Value": endpoint}, {"Name": "VariantName", "Value": variant}]


def read_points(
    service: AwsService, endpoint: str, queries: Sequence[MetricQuery], start: datetime, end: datetime
) -> dict[MetricQuery, Points]:
    """Return the points of each query, oldest first; none if CloudWatch has none.

    Raises:
        UsageError: CloudWatch does not take the queries.
        EnvironmentFault: it cannot be asked, or cannot answer now.
    """
    points: dict[MetricQuery, Points] = {query: [] for query in queries}
    for first in range(0, len(queries), MAX_QUERIES):
        by_id = {f"q{number}": query for number, query in enumerate(queries[first : first + MAX_QUERIES])}
        states: dict[str, str] = {}
        for result in service.pages(
            "get_metric_data",
            "MetricDataResults",
            MetricDataQueries=[_data_query(name, endpoint, query) for name, query in by_id.items()],
            StartTime=start,
            EndTime=end,
            ScanBy="TimestampAscending",
        ):
            states[result["Id"]] = result.get("StatusCode", "Complete")
            points[by_id[result["Id"]]] += _result_points(result, endpoint)
        if "PartialData" in states.values():  # the last page of a metric that is complete says so
            raise EnvironmentFault(
                "CloudWatch gave only a part of the metrics", remedy="run the same command again", transient=True
            )
    return points


def _data_query(name: str, endpoint: str, query: MetricQuery) -> dict[str, Any]:
    return {
        "Id": name,
        "MetricStat": {
            "Metric": {
                "Namespace": query.namespace,
                "MetricName": query.metric,
                "Dimensions": dimensions(endpoint, query.variant),
            },
            "Period": query.period_seconds,
            "Stat": query.statistic,
        },
    }


def _result_points(result: dict[str, Any], endpoint: str) -> Points:
    state = result.get("StatusCode", "Complete")
    if state == "Forbidden":
        raise EnvironmentFault(
            f"the metrics of {endpoint}: these credentials are not allowed all of them",
            remedy="allow cloudwatch:GetMetricData to them, or use others: AWS_PROFILE",
        )
    if state == "InternalError":
        raise EnvironmentFault(
            "CloudWatch could not answer", remedy="run the same command again in a minute", transient=True
        )
    return [
        (time.astimezone(UTC), float(value)) for time, value in zip(result["Timestamps"], result["Values"], strict=True)
    ]


@dataclass(frozen=True)
class TimeRange:
    """Time range, and the period of a point.

    Attributes:
        start: in UTC, at a multiple of the period.
        end: in UTC.
        period_seconds: of a point.
        finest_seconds: the shortest period that CloudWatch still has of the start.
    """

    start: datetime
    end: datetime
    period_seconds: int
    finest_seconds: int

    @property
    def total_seconds(self) -> int:
        """The period that covers the range with one point; the maximum period for longer ranges."""
        seconds = (self.end - self.start).total_seconds()
        return min(max(math.ceil(seconds / self.finest_seconds), 1) * self.finest_seconds, MAX_PERIOD_SECONDS)


def parse_time(text: str, now: datetime) -> datetime:
    """Parse a time: an age (3h, 45m, 2d), or an ISO 8601 date or time, in UTC without a zone.

    Raises:
        UsageError: it is neither.
    """
    try:
        try:
            time = datetime.fromisoformat(text.strip())
        except ValueError:
            return now - timedelta(seconds=seconds_from_age(text))
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (UsageError, OverflowError) as error:
        raise UsageError(
            f"{text!r} is no time", remedy="write how long ago (45m, 3h, 2d), or a time such as 2026-11-23T10:00"
        ) from error


def time_range(start: datetime, end: datetime, now: datetime, period_seconds: int | None = None) -> TimeRange:
    """Return a range whose points CloudWatch still has.

    Args:
        start: its beginning.
        end: its end.
        now: the age of the start decides which periods CloudWatch still has.
        period_seconds: of a point; None for one that fits the length and age of the range.

    Raises:
        UsageError: it ends before it starts, or CloudWatch has no such points of it.
    """
    if start >= end:
        raise UsageError("the range ends before it starts", remedy="name a --since that is before --until")
    finest = _finest_period((now - start).total_seconds())
    seconds = (end - start).total_seconds()
    if period_seconds is None:
        fitting = (length for length in _PERIODS if length >= finest and seconds / length <= _USUAL_POINTS)
        period = next(fitting, _PERIODS[-1])
    else:
        _require_period(period_seconds, finest, seconds)
        period = period_seconds
    rounded = math.floor(start.timestamp() / period) * period
    return TimeRange(datetime.fromtimestamp(rounded, UTC), end.astimezone(UTC), period, finest)


def _finest_period(age_seconds: float) -> int:
    """Return the finest CloudWatch period for data of an age, with a margin for the time until the request."""
    for retention_seconds, period in _RETENTION:
        if age_seconds <= retention_seconds - period:
            return period
    raise UsageError("CloudWatch keeps metrics for 455 days", remedy="name a --since that is less long ago")


def _require_period(period: int, finest: int, seconds: float) -> None:
    if period < finest or period % finest or period > MAX_PERIOD_SECONDS:
        raise UsageError(
            f"CloudWatch has no points of {format_seconds(period)} of a time so long ago",
            remedy=f"pass a --period that is a multiple of {finest // 60}m, up to 30d; or leave it out",
        )
    if seconds / period > _MAX_POINTS:
        raise UsageError(
            f"that would be {seconds / period:,.0f} points of each metric", remedy="pass a longer --period, or none"
        )
