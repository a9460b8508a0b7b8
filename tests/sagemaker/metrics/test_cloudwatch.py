"""How CloudWatch is asked, and what becomes of its errors and of half an answer, by botocore's model of the service."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.session import Session
from botocore.stub import Stubber

from plansmith.errors import EnvironmentFault
from plansmith.sagemaker.description import EndpointDescription, VariantDescription
from plansmith.sagemaker.metrics.cloudwatch import MAX_QUERIES, MetricQuery, cloudwatch_service, read_points, time_range
from plansmith.sagemaker.metrics.values import read_metrics

REGION = "eu-west-1"
NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@dataclass
class CloudWatch:
    """CloudWatch with prepared answers, and the calls that it got."""

    stubber: Stubber
    calls: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, *results: dict[str, Any], **more: Any) -> None:
        """Prepare the answer to one call."""
        self.stubber.add_response("get_metric_data", {"MetricDataResults": list(results), **more})


@pytest.fixture
def cloudwatch(monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudWatch]:
    client = Session().create_client(
        "cloudwatch", region_name=REGION, aws_access_key_id="id", aws_secret_access_key="key"
    )
    monkeypatch.setattr("plansmith.system.aws.service.AwsService._connect", lambda _: client)
    with Stubber(client) as stubber:
        prepared = CloudWatch(stubber)
        client.meta.events.register_first(
            "before-parameter-build.*.*", lambda params, **_: prepared.calls.append(dict(params))
        )
        yield prepared
        stubber.assert_no_pending_responses()


def result(number: int, *values: float, state: str = "Complete", start: datetime = NOON) -> dict[str, Any]:
    """The answer to a query: a value a minute."""
    times = [start + place * MINUTE for place in range(len(values))]
    return {"Id": f"q{number}", "Timestamps": times, "Values": [*values], "StatusCode": state}


def read(count: int = 1) -> list[Any]:
    """The points of some queries."""
    queries = [MetricQuery(f"variant{number}", "AWS/SageMaker", "ModelLatency", "p99", 60) for number in range(count)]
    service = cloudwatch_service("ranker", REGION)
    return list(read_points(service, "ranker", queries, NOON, NOON + timedelta(hours=1)).values())


def endpoint(*variants: str) -> EndpointDescription:
    return EndpointDescription(
        name="ranker",
        region=REGION,
        status="InService",
        created=NOON - timedelta(days=90),
        changed=NOON - timedelta(days=90),
        variants=tuple(VariantDescription(name=name) for name in variants),
    )


def test_query(cloudwatch: CloudWatch) -> None:
    """A query names the endpoint, the variant, the statistic and the period."""
    cloudwatch.answer()
    read()
    (call,) = cloudwatch.calls
    named = {"EndpointName": "ranker", "VariantName": "variant0"}
    assert call["MetricDataQueries"][0]["MetricStat"] == {
        "Metric": {
            "Namespace": "AWS/SageMaker",
            "MetricName": "ModelLatency",
            "Dimensions": [{"Name": name, "Value": value} for name, value in named.items()],
        },
        "Period": 60,
        "Stat": "p99",
    }
    assert (call["StartTime"], call["EndTime"]) == (NOON, NOON + timedelta(hours=1))


def test_many_queries(cloudwatch: CloudWatch) -> None:
    """More than 500 queries are several calls."""
    cloudwatch.answer(result(499, 1.0))
    cloudwatch.answer(result(0, 2.0), result(100, 3.0))
    points = read(601)
    assert [len(call["MetricDataQueries"]) for call in cloudwatch.calls] == [MAX_QUERIES, 101]
    assert [points[place] for place in (499, 500, 600)] == [[(NOON, 1.0)], [(NOON, 2.0)], [(NOON, 3.0)]]


def test_pages(cloudwatch: CloudWatch) -> None:
    """The pages of an answer are joined."""
    cloudwatch.answer(result(0, 1.0, 2.0, state="PartialData"), NextToken="more")
    cloudwatch.answer(result(0, 3.0, start=NOON + 2 * MINUTE))
    assert read() == [[(NOON, 1.0), (NOON + MINUTE, 2.0), (NOON + 2 * MINUTE, 3.0)]]
    assert [call.get("NextToken") for call in cloudwatch.calls] == [None, "more"]


@pytest.mark.parametrize(
    ("state", "message", "transient"),
    [
        ("PartialData", "only a part of the metrics", True),
        ("InternalError", "could not answer", True),
        ("Forbidden", "not allowed all of them", False),
    ],
)
def test_half_an_answer(state: str, message: str, transient: bool, cloudwatch: CloudWatch) -> None:
    """Half an answer is an error, and not fewer values."""
    cloudwatch.answer(result(0, 1.0, state=state))
    with pytest.raises(EnvironmentFault, match=message) as error:
        read()
    assert error.value.transient is transient


def test_missing_permission(cloudwatch: CloudWatch) -> None:
    """A permission that is missing is named."""
    cloudwatch.stubber.add_client_error("get_metric_data", "AccessDenied", "", http_status_code=403)
    with pytest.raises(EnvironmentFault, match="not allowed cloudwatch:GetMetricData"):
        read()


def test_percentile_of_long_range(cloudwatch: CloudWatch) -> None:
    """Beyond 30 days a percentile is at most the largest of several."""
    times = time_range(NOON - timedelta(days=40), NOON, NOON)
    cloudwatch.answer()
    read_metrics(endpoint("blue"), times)
    (query,) = [
        query["Id"]
        for query in cloudwatch.calls[0]["MetricDataQueries"]
        if query["MetricStat"]["Metric"]["MetricName"] == "ModelLatency"
        and (query["MetricStat"]["Stat"], query["MetricStat"]["Period"]) == ("p99", times.total_seconds)
    ]
    moments = [NOON - timedelta(days=40), NOON - timedelta(days=10)]
    cloudwatch.answer({"Id": query, "Timestamps": moments, "Values": [9000.0, 7000.0]})
    (blue,) = read_metrics(endpoint("blue"), times).variants
    p99 = blue.statistic("ModelLatency", "p99")
    assert (p99.total, p99.is_upper_bound) == (9.0, True)


def test_eight_variants(cloudwatch: CloudWatch) -> None:
    """Eight variants fit one call."""
    cloudwatch.answer()
    variants = [f"variant{number}" for number in range(8)]
    read_metrics(endpoint(*variants), time_range(NOON - timedelta(hours=3), NOON, NOON))
    assert len(cloudwatch.calls) == 1
