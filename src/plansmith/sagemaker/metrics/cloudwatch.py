"""CloudWatch, asked for many statistics at once.

GetMetricData takes 500 queries a call and answers in pages:
docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_GetMetricData.html.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from plansmith.errors import EnvironmentFault
from plansmith.system.aws.service import AwsService

MAX_QUERIES = 500

Points = list[tuple[datetime, float]]


@dataclass(frozen=True)
class MetricQuery:
    """One statistic of one metric of a variant, in points of a period."""

    variant: str
    namespace: str
    metric: str
    statistic: str
    period_seconds: int


def cloudwatch_service(endpoint: str, region: str) -> AwsService:
    """CloudWatch in a region, for the metrics of an endpoint."""
    return AwsService(
        "cloudwatch",
        f"CloudWatch in {region}",
        region=region,
        settings="the region and the network",
        remedy="see what CloudWatch has: aws cloudwatch list-metrics --namespace AWS/SageMaker"
        f" --dimensions Name=EndpointName,Value={endpoint} --region {region}",
    )


def dimensions(endpoint: str, variant: str) -> list[dict[str, str]]:
    """The dimensions of the metrics of a variant."""
    return [{"Name": "EndpointName", "Value": endpoint}, {"Name": "VariantName", "Value": variant}]


def read_points(
    service: AwsService, endpoint: str, queries: Sequence[MetricQuery], start: datetime, end: datetime
) -> dict[MetricQuery, Points]:
    """The points of each query, the oldest first; none where CloudWatch has none.

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
