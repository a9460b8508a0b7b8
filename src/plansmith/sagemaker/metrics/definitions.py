"""The metrics that CloudWatch has of an endpoint: names, namespaces, units and statistics.

Source: docs.aws.amazon.com/sagemaker/latest/dg/monitoring-cloudwatch.html, "endpoint metrics", "endpoint invocation
metrics" and "multi-model endpoint metrics". All have the dimensions EndpointName and VariantName. Latencies and loading
times are in microseconds there. Each request counts 0 or 1 as an error, so that there are values of errors wherever
there were requests, and their average is the error rate. CPUUtilization goes to 100 % for each core, GPUUtilization and
GPUMemoryUtilization to 100 % for each GPU. The average of ModelCacheHit is the part of the requests whose model was
loaded. LoadedModelCount comes from each instance.

CloudWatch has percentiles of the metrics of which it has single values, and of no others:
docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_GetMetricStatistics.html.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal["ms", "percent", "count"]

INVOCATION_NAMESPACE = "AWS/SageMaker"
INSTANCE_NAMESPACE = "/aws/sagemaker/Endpoints"

PERCENTILES = ("p50", "p90", "p99")


@dataclass(frozen=True)
class Metric:
    """A metric of CloudWatch's.

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

TOTAL_LATENCY = "TotalLatency"
"""The mean latency of container and overhead together: each request counts once in both, so that means add up.
Percentiles do not, and CloudWatch has none of the sum. The way between client and SageMaker is in none of them."""

METRICS_BY_NAME = {metric.name: metric for metric in METRICS}
