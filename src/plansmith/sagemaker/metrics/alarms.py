"""CloudWatch alarms on the metrics of an endpoint: created on request, updated where they differ, deleted by name.

An alarm watches one metric of one variant. It goes off when three of five minutes are beyond the limit; minutes without
requests do not count (docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/AlarmThatSendsEmail.html).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from plansmith.errors import UsageError
from plansmith.records.model import Record
from plansmith.sagemaker.description import EndpointDescription, VariantDescription
from plansmith.sagemaker.metrics.cloudwatch import METRICS_BY_NAME, PERCENTILES, cloudwatch_service, dimensions
from plansmith.system.aws.service import AwsService

_PERIOD_SECONDS = 60
_EVALUATION_PERIODS = 5
_DATAPOINTS_TO_ALARM = 3
_MAX_NAMES = 100  # of DescribeAlarms and DeleteAlarms
_ACTION = re.compile(r"arn:aws[a-z-]*:[a-z0-9-]+:\S+")
_COMPARED = (
    *("MetricName", "Namespace", "Dimensions", "Statistic", "ExtendedStatistic", "Threshold", "ComparisonOperator"),
    *("Period", "EvaluationPeriods", "DatapointsToAlarm", "TreatMissingData", "AlarmActions", "OKActions"),
    "AlarmDescription",
)

Change = Literal["create", "update", "unchanged"]

DEFAULT_LIMITS: Mapping[str, float] = {"5xx-percent": 1.0, "memory-percent": 90.0, "disk-percent": 85.0}
"""What every endpoint should keep, whatever its models."""


@dataclass(frozen=True)
class AlarmKind:
    """Kind of alarm.

    Attributes:
        name: of its limit, and in the alarm's name.
        metric: CloudWatch's name.
        statistic: CloudWatch's name.
        unit: of the limit, % or ms.
        scale: from that unit to CloudWatch's.
        below: whether the alarm goes off below the limit, and not above.
    """

    name: str
    metric: str
    statistic: str
    unit: str
    scale: float
    below: bool = False


ALARM_KINDS = (
    AlarmKind("5xx-percent", "Invocation5XXErrors", "Average", "%", 0.01),
    AlarmKind("p99-ms", "ModelLatency", "p99", "ms", 1000),
    AlarmKind("overhead-p99-ms", "OverheadLatency", "p99", "ms", 1000),
    AlarmKind("gpu-percent", "GPUUtilization", "Average", "%", 1),
    AlarmKind("gpu-memory-percent", "GPUMemoryUtilization", "Maximum", "%", 1),
    AlarmKind("cpu-percent", "CPUUtilization", "Average", "%", 1),
    AlarmKind("memory-percent", "MemoryUtilization", "Maximum", "%", 1),
    AlarmKind("disk-percent", "DiskUtilization", "Maximum", "%", 1),
    AlarmKind("model-wait-ms", "ModelLoadingWaitTime", "Average", "ms", 1000),
    AlarmKind("cache-hit-percent", "ModelCacheHit", "Average", "%", 0.01, below=True),
)
"""The kinds of alarms. The average of errors, of which each request counts 0 or 1, is the error rate."""


class AlarmChange(Record):
    """Alarm change: an alarm, and the action planned for it.

    Attributes:
        name: of the alarm.
        variant: that it watches.
        change: create, update or unchanged.
        parameters: of PutMetricAlarm.
    """

    name: str
    variant: str
    change: Change
    parameters: dict[str, Any]


class AlarmPlan(Record):
    """Alarm plan of an endpoint.

    Attributes:
        endpoint: its name.
        region: where it is.
        alarms: all of them, also those that stay.
    """

    endpoint: str
    region: str
    alarms: tuple[AlarmChange, ...]

    @property
    def pending(self) -> tuple[AlarmChange, ...]:
        """The alarms that differ from the plan."""
        return tuple(alarm for alarm in self.alarms if alarm.change != "unchanged")


def plan_alarms(
    endpoint: EndpointDescription,
    variants: Sequence[VariantDescription],
    limits: Mapping[str, float],
    actions: Sequence[str] = (),
) -> AlarmPlan:
    """Plan an endpoint's alarms against those in CloudWatch; changes nothing.

    Args:
        endpoint: the endpoint.
        variants: those that are watched.
        limits: by the name of a kind, in its unit.
        actions: ARNs that are told when an alarm goes off and when it is over, such as of SNS topics.

    Raises:
        UsageError: an action that is no ARN.
        EnvironmentFault: CloudWatch cannot be asked.
    """
    for action in actions:
        if not _ACTION.fullmatch(action):
            raise UsageError(
                f"{action!r} is no ARN that an alarm can notify",
                remedy="name a topic like arn:aws:sns:eu-west-1:123456789012:on-call",
            )
    desired = [
        _alarm(endpoint, variant.name, kind, limits[kind.name], actions)
        for variant in variants
        for kind in ALARM_KINDS
        if kind.name in limits
    ]
    service = cloudwatch_service(endpoint.name, endpoint.region)
    try:
        current = _current_alarms(service, [alarm["AlarmName"] for alarm in desired])
    finally:
        service.close()
    alarms = [
        AlarmChange(
            name=alarm["AlarmName"],
            variant=alarm["Dimensions"][1]["Value"],
            change=_change(alarm, current.get(alarm["AlarmName"])),
            parameters=alarm,
        )
        for alarm in desired
    ]
    return AlarmPlan(endpoint=endpoint.name, region=endpoint.region, alarms=tuple(alarms))


def apply_alarms(plan: AlarmPlan) -> None:
    """Create and update the planned alarms; idempotent.

    Raises:
        UsageError: CloudWatch does not take an alarm.
        EnvironmentFault: it cannot be asked, or does not allow it.
    """
    service = cloudwatch_service(plan.endpoint, plan.region)
    try:
        for alarm in plan.pending:
            service.call("put_metric_alarm", **alarm.parameters)
    finally:
        service.close()


def find_alarms(endpoint: str, region: str) -> tuple[str, ...]:
    """Return the names of an endpoint's alarms created by plansmith, whether or not the endpoint exists.

    Raises:
        EnvironmentFault: CloudWatch cannot be asked.
    """
    service = cloudwatch_service(endpoint, region)
    try:
        alarms = service.pages("describe_alarms", "MetricAlarms", AlarmNamePrefix=f"plansmith-{endpoint}-")
        # The prefix of one endpoint may begin the name of another.
        watched = [
            alarm["AlarmName"]
            for alarm in alarms
            if {"Name": "EndpointName", "Value": endpoint} in alarm.get("Dimensions", [])
        ]
    finally:
        service.close()
    return tuple(sorted(watched))


def delete_alarms(endpoint: str, region: str, names: Sequence[str]) -> None:
    """Delete alarms by name; missing ones are no error.

    Raises:
        EnvironmentFault: CloudWatch cannot be asked, or does not allow it.
    """
    service = cloudwatch_service(endpoint, region)
    try:
        for first in range(0, len(names), _MAX_NAMES):
            service.call("delete_alarms", AlarmNames=list(names[first : first + _MAX_NAMES]))
    finally:
        service.close()


def _alarm(
    endpoint: EndpointDescription, variant: str, kind: AlarmKind, limit: float, actions: Sequence[str]
) -> dict[str, Any]:
    """Return the parameters of PutMetricAlarm."""
    metric = METRICS_BY_NAME[kind.metric]
    is_percentile = kind.statistic in PERCENTILES
    side, operator = ("below", "LessThanThreshold") if kind.below else ("above", "GreaterThanThreshold")
    return {
        "AlarmName": f"plansmith-{endpoint.name}-{variant}-{kind.name}",
        "AlarmDescription": f"{metric.label}, {kind.statistic}, {side} {limit:g} {kind.unit}",
        "Namespace": metric.namespace,
        "MetricName": metric.name,
        "Dimensions": dimensions(endpoint.name, variant),
        ("ExtendedStatistic" if is_percentile else "Statistic"): kind.statistic,
        "Period": _PERIOD_SECONDS,
        "EvaluationPeriods": _EVALUATION_PERIODS,
        "DatapointsToAlarm": _DATAPOINTS_TO_ALARM,
        "Threshold": round(limit * kind.scale, 6),
        "ComparisonOperator": operator,
        "TreatMissingData": "notBreaching",
        "AlarmActions": list(actions),
        "OKActions": list(actions),
    }


def _current_alarms(service: AwsService, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    batches = (list(names[first : first + _MAX_NAMES]) for first in range(0, len(names), _MAX_NAMES))
    return {
        alarm["AlarmName"]: alarm
        for batch in batches
        for alarm in service.pages("describe_alarms", "MetricAlarms", AlarmNames=batch)
    }


def _change(desired: dict[str, Any], current: dict[str, Any] | None) -> Change:
    if current is None:
        return "create"
    return "unchanged" if all(_value(desired, name) == _value(current, name) for name in _COMPARED) else "update"


def _value(alarm: dict[str, Any], name: str) -> Any:
    value = alarm.get(name) or None
    return sorted(value, key=str) if isinstance(value, list) else value
