"""Alarms on the metrics of an endpoint, as moto's CloudWatch keeps them."""

from __future__ import annotations

import pytest

from plansmith.errors import UsageError
from plansmith.sagemaker.description import describe_endpoint
from plansmith.sagemaker.metrics.alarms import (
    ALARM_KINDS,
    AlarmPlan,
    apply_alarms,
    delete_alarms,
    find_alarms,
    plan_alarms,
)
from plansmith.sagemaker.metrics.cloudwatch import METRICS_BY_NAME

from ...support.sagemaker.cloudwatch import REGION, CloudWatchAccount, Endpoint

pytestmark = pytest.mark.slow

TOPIC = "arn:aws:sns:us-east-1:123456789012:on-call"
LIMITS = {"5xx-percent": 1.0, "p99-ms": 200.0}


def plan(endpoint: Endpoint, limits: dict[str, float], *actions: str) -> AlarmPlan:
    description = describe_endpoint(endpoint.name, REGION)
    return plan_alarms(description, description.variants, limits, actions)


def changes(planned: AlarmPlan) -> list[str]:
    return [alarm.change for alarm in planned.alarms]


def test_alarms_are_created_once(cloudwatch_account: CloudWatchAccount) -> None:
    """Alarms are created, then unchanged, and updated where a limit or an action differs."""
    endpoint = cloudwatch_account.endpoint("blue", "green")
    first = plan(endpoint, LIMITS)
    assert changes(first) == ["create"] * 4
    apply_alarms(first)
    stored = cloudwatch_account.cloudwatch.describe_alarms(AlarmNames=[f"plansmith-{endpoint.name}-blue-p99-ms"])
    (alarm,) = stored["MetricAlarms"]
    assert (alarm["MetricName"], alarm["ExtendedStatistic"], alarm["Threshold"]) == ("ModelLatency", "p99", 200_000)
    assert (alarm["EvaluationPeriods"], alarm["TreatMissingData"]) == (5, "notBreaching")
    assert {dimension["Name"]: dimension["Value"] for dimension in alarm["Dimensions"]} == {
        "EndpointName": endpoint.name,
        "VariantName": "blue",
    }
    assert changes(plan(endpoint, LIMITS)) == ["unchanged"] * 4
    changed = plan(endpoint, {**LIMITS, "p99-ms": 100.0})
    assert changes(changed) == ["unchanged", "update"] * 2
    apply_alarms(changed)
    assert changes(plan(endpoint, {**LIMITS, "p99-ms": 100.0})) == ["unchanged"] * 4
    assert changes(plan(endpoint, {**LIMITS, "p99-ms": 100.0}, TOPIC)) == ["update"] * 4


@pytest.mark.parametrize(
    ("kind", "limit", "threshold", "operator"),
    [
        ("5xx-percent", 0.1, 0.001, "GreaterThanThreshold"),
        ("gpu-memory-percent", 95.0, 95.0, "GreaterThanThreshold"),
        ("model-wait-ms", 250.0, 250_000.0, "GreaterThanThreshold"),
        ("cache-hit-percent", 80.0, 0.8, "LessThanThreshold"),
    ],
)
def test_thresholds(
    kind: str, limit: float, threshold: float, operator: str, cloudwatch_account: CloudWatchAccount
) -> None:
    """A limit in percent or milliseconds becomes a threshold in CloudWatch's unit."""
    (alarm,) = plan(cloudwatch_account.endpoint(), {kind: limit}).alarms
    assert (alarm.parameters["Threshold"], alarm.parameters["ComparisonOperator"]) == (threshold, operator)


def test_kinds_fit_metrics() -> None:
    """Every kind watches a statistic that CloudWatch has of its metric, or the average of errors."""
    for kind in ALARM_KINDS:
        kinds = METRICS_BY_NAME[kind.metric].statistics
        assert kind.statistic in kinds or (kind.metric, kind.statistic) == ("Invocation5XXErrors", "Average")


def test_deletion(cloudwatch_account: CloudWatchAccount) -> None:
    """The alarms of an endpoint are deleted, and not those of another whose name begins the same; twice is no error."""
    endpoint = cloudwatch_account.endpoint()
    apply_alarms(plan(endpoint, LIMITS))
    similar = f"{endpoint.name}-2"
    cloudwatch_account.cloudwatch.put_metric_alarm(
        AlarmName=f"plansmith-{similar}-blue-p99-ms",
        Dimensions=[{"Name": "EndpointName", "Value": similar}],
        Namespace="AWS/SageMaker",
        MetricName="ModelLatency",
        ExtendedStatistic="p99",
        Period=60,
        EvaluationPeriods=1,
        Threshold=1,
        ComparisonOperator="GreaterThanThreshold",
    )
    names = find_alarms(endpoint.name, REGION)
    assert names == tuple(f"plansmith-{endpoint.name}-blue-{kind}" for kind in ("5xx-percent", "p99-ms"))
    for _ in range(2):
        delete_alarms(endpoint.name, REGION, names)
    assert find_alarms(endpoint.name, REGION) == ()
    assert len(find_alarms(similar, REGION)) == 1


def test_invalid_action(cloudwatch_account: CloudWatchAccount) -> None:
    """An action that is no ARN is refused before anything is changed."""
    with pytest.raises(UsageError, match="no ARN"):
        plan(cloudwatch_account.endpoint(), LIMITS, "on-call@example.com")
