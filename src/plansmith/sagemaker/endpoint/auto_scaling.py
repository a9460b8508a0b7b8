"""The requests to Application Auto Scaling that let the number of a variant's instances follow its load."""

from __future__ import annotations

from typing import Any

from plansmith.sagemaker.endpoint.instances import known_instance
from plansmith.sagemaker.endpoint.variant import VariantSpec
from plansmith.system.aws.call import Call

SERVICE = "application-autoscaling"
NAMESPACE = "sagemaker"
POLICY_PREFIX = "plansmith-"
"""The start of the names of plansmith's scaling policies."""

POLICY_FIELD = "TargetTrackingScalingPolicyConfiguration"
_DIMENSION = "sagemaker:variant:DesiredInstanceCount"


def resource_id(endpoint: str, variant: str) -> str:
    """The name of a variant in Application Auto Scaling."""
    return f"endpoint/{endpoint}/variant/{variant}"


def scalable_target(endpoint: str, variant: str) -> dict[str, Any]:
    """The parameters that name a variant."""
    return {
        "ServiceNamespace": NAMESPACE,
        "ResourceId": resource_id(endpoint, variant),
        "ScalableDimension": _DIMENSION,
    }


def register_call(endpoint: str, variant: str, limits: dict[str, Any]) -> Call:
    """Let a variant scale between two numbers of instances."""
    parameters = scalable_target(endpoint, variant) | limits
    return Call(service=SERVICE, operation="register_scalable_target", parameters=parameters)


def policy_call(endpoint: str, variant: str, name: str, configuration: dict[str, Any]) -> Call:
    """Let a variant follow a metric."""
    return Call(
        service=SERVICE,
        operation="put_scaling_policy",
        parameters={
            "PolicyName": name,
            **scalable_target(endpoint, variant),
            "PolicyType": "TargetTrackingScaling",
            POLICY_FIELD: configuration,
        },
    )


def deregister_call(endpoint: str, variant: str) -> Call:
    """Let a variant scale no more; its policies end with it."""
    return Call(service=SERVICE, operation="deregister_scalable_target", parameters=scalable_target(endpoint, variant))


def delete_policy_call(endpoint: str, variant: str, name: str) -> Call:
    """Let a variant follow a metric no more."""
    parameters = {"PolicyName": name, **scalable_target(endpoint, variant)}
    return Call(service=SERVICE, operation="delete_scaling_policy", parameters=parameters)


def scaling_calls(endpoint: str, variant: VariantSpec) -> tuple[Call, ...]:
    """The requests that let a variant scale as its spec says: its limits, and a policy for each metric.

    Metrics: docs.aws.amazon.com/sagemaker/latest/dg/monitoring-cloudwatch.html; for multi-model variants
    multi-model-endpoints-autoscaling.html there.
    """
    scaling = variant.auto_scaling
    if scaling is None:
        return ()
    limits = {"MinCapacity": scaling.min_instances, "MaxCapacity": scaling.max_instances}
    cooldowns = {
        "ScaleInCooldown": scaling.scale_in_seconds,
        "ScaleOutCooldown": scaling.scale_out_seconds,
        "DisableScaleIn": not scaling.scale_in,
    }
    instance = known_instance(variant.instance_type)
    # CloudWatch's utilization is the sum over the CPU cores or GPUs of an instance: 100 % for each.
    metrics: dict[str, tuple[float | None, dict[str, Any]]] = {
        "invocations": (
            scaling.invocations_per_instance,
            {"PredefinedMetricSpecification": {"PredefinedMetricType": "SageMakerVariantInvocationsPerInstance"}},
        ),
        "gpu": (
            (scaling.gpu_utilization or 0) * instance.gpus,
            _utilization_metric("GPUUtilization", endpoint, variant.name),
        ),
        "cpu": (
            (scaling.cpu_utilization or 0) * instance.vcpus,
            _utilization_metric("CPUUtilization", endpoint, variant.name),
        ),
    }
    policies = (
        policy_call(
            endpoint, variant.name, f"{POLICY_PREFIX}{name}", {"TargetValue": float(value), **metric, **cooldowns}
        )
        for name, (value, metric) in metrics.items()
        if value
    )
    return (register_call(endpoint, variant.name, limits), *policies)


def _utilization_metric(name: str, endpoint: str, variant: str) -> dict[str, Any]:
    dimensions = {"EndpointName": endpoint, "VariantName": variant}
    return {
        "CustomizedMetricSpecification": {
            "MetricName": name,
            "Namespace": "/aws/sagemaker/Endpoints",
            "Dimensions": [{"Name": key, "Value": value} for key, value in dimensions.items()],
            "Statistic": "Average",
            "Unit": "Percent",
        }
    }
