"""Metrics of an endpoint, as moto's CloudWatch has them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from plansmith.errors import UsageError
from plansmith.sagemaker.description import describe_endpoint
from plansmith.sagemaker.metrics.cloudwatch import METRICS, TOTAL_LATENCY, time_range
from plansmith.sagemaker.metrics.values import EndpointMetrics, read_metrics

from ...support.sagemaker.cloudwatch import INSTANCES, INVOCATIONS, REGION, CloudWatchAccount, Endpoint

pytestmark = pytest.mark.slow


def read(endpoint: Endpoint, *, period: int | None = None) -> EndpointMetrics:
    """The metrics of the last hour."""
    now = datetime.now(UTC)
    times = time_range(now - timedelta(hours=1), now, now, period)
    return read_metrics(describe_endpoint(endpoint.name, REGION), times)


def test_latency(cloudwatch_account: CloudWatchAccount) -> None:
    """Latencies are in milliseconds, and percentiles are those of single requests."""
    endpoint = cloudwatch_account.endpoint()
    last = endpoint.serve()
    (blue,) = read(endpoint).variants
    totals = {name: blue.total("ModelLatency", name) for name in ("Average", "p50", "p90", "p99", "Maximum")}
    assert totals == pytest.approx({"Average": 19.0, "p50": 12.0, "p90": 40.0, "p99": 40.0, "Maximum": 40.0})
    assert blue.total(TOTAL_LATENCY, "Average") == pytest.approx(21.0)
    points = blue.statistic("ModelLatency", "Average").points
    assert [time for time, _ in points] == [last - timedelta(minutes=age) for age in range(5, 0, -1)]
    assert [value for _, value in points] == pytest.approx([19.0] * 5)


def test_mean_counts_requests(cloudwatch_account: CloudWatchAccount) -> None:
    """The mean of a range is that of its requests, and not of its minutes."""
    endpoint = cloudwatch_account.endpoint()
    last = datetime.now(UTC).replace(second=0, microsecond=0)
    endpoint.put("blue", INVOCATIONS, "ModelLatency", last - timedelta(minutes=2), [1_000.0] * 9)
    endpoint.put("blue", INVOCATIONS, "ModelLatency", last - timedelta(minutes=1), [101_000.0])
    (blue,) = read(endpoint).variants
    assert blue.total("ModelLatency", "Average") == pytest.approx(11.0)
    assert [value for _, value in blue.statistic("ModelLatency", "Average").points] == pytest.approx([1.0, 101.0])


def test_counts_and_utilization(cloudwatch_account: CloudWatchAccount) -> None:
    """Invocations and errors are counts, utilization is in percent, and variants have their own."""
    endpoint = cloudwatch_account.endpoint("blue", "green")
    endpoint.serve(failures=1)
    endpoint.serve("green", minutes=2)
    blue, green = read(endpoint).variants
    assert (blue.total("Invocations"), green.total("Invocations")) == (20, 8)
    assert (blue.total("Invocation4XXErrors"), blue.total("Invocation5XXErrors"), blue.errors) == (0, 1, 1)
    assert blue.error_rate == pytest.approx(0.05)
    assert (blue.total("CPUUtilization", "Average"), blue.total("CPUUtilization", "Maximum")) == (151, 152)
    assert (blue.instances, blue.instance_type, blue.weight) == (2, "ml.g4dn.xlarge", 1)


def test_multi_model(cloudwatch_account: CloudWatchAccount) -> None:
    """A multi-model endpoint has loaded models, cache hits and loading times."""
    endpoint = cloudwatch_account.endpoint(data="s3://models/many/", multi_model=True)
    time = endpoint.serve() - timedelta(minutes=3)
    endpoint.put("blue", INVOCATIONS, "ModelCacheHit", time, [1.0, 1.0, 1.0, 0.0])
    endpoint.put("blue", INVOCATIONS, "ModelLoadingTime", time, [3_000_000.0, 5_000_000.0])
    endpoint.put("blue", INSTANCES, "LoadedModelCount", time, [4.0, 6.0])
    (blue,) = read(endpoint).variants
    assert blue.total("ModelCacheHit", "Average") == 75
    assert (blue.total("ModelLoadingTime", "SampleCount"), blue.total("ModelLoadingTime", "Average")) == (2, 4000)
    assert (blue.total("LoadedModelCount", "Average"), blue.total("LoadedModelCount", "Maximum")) == (5, 6)


def test_no_values(cloudwatch_account: CloudWatchAccount) -> None:
    """What CloudWatch has nothing of is None and not zero, with the reason as far as it is known."""
    endpoint = cloudwatch_account.endpoint()
    metrics = read(endpoint)
    (blue,) = metrics.variants
    assert {(statistic.total, statistic.points) for statistic in blue.statistics} == {(None, ())}
    assert (blue.errors, blue.error_rate, blue.is_empty) == (None, None, True)
    assert {statistic.metric for statistic in blue.statistics} == {*(metric.name for metric in METRICS), TOTAL_LATENCY}
    reasons: dict[str, dict[str, Any]] = {
        "is new": {},
        "CloudWatch has no metrics of it in us-east-1": {"created": metrics.start - timedelta(days=3)},
        "being created": {"status": "Creating"},
        "was created after that": {"created": metrics.end + timedelta(days=3)},
    }
    for reason, fields in reasons.items():
        assert reason in metrics.model_copy(update=fields).reason_for_no_requests(blue)
    endpoint.put("blue", INSTANCES, "CPUUtilization", metrics.end - timedelta(minutes=2), [3.0])
    idle = read(endpoint)
    assert idle.reason_for_no_requests(idle.variants[0]) == "there were no invocations in that time"


def test_long_period(cloudwatch_account: CloudWatchAccount) -> None:
    """A longer period has fewer points of the same requests."""
    endpoint = cloudwatch_account.endpoint()
    endpoint.serve(minutes=20)
    (blue,) = read(endpoint, period=900).variants
    points = blue.statistic("Invocations", "Sum").points
    assert len(points) <= 3
    assert sum(value for _, value in points) == 80 == blue.total("Invocations")


def test_json(cloudwatch_account: CloudWatchAccount) -> None:
    """The metrics survive JSON."""
    endpoint = cloudwatch_account.endpoint()
    endpoint.serve()
    metrics = read(endpoint)
    assert EndpointMetrics.model_validate_json(metrics.model_dump_json()) == metrics


def test_missing_endpoint(cloudwatch_account: CloudWatchAccount) -> None:
    """An endpoint that does not exist is an error that names the region."""
    assert cloudwatch_account.address
    with pytest.raises(UsageError, match="SageMaker in us-east-1 refuses describe endpoint") as error:
        describe_endpoint("nobody", REGION)
    assert "aws sagemaker list-endpoints --region us-east-1" in error.value.remedy
