"""What a job of Inference Recommender found: recommendations, and the load tests that they are from.

Metrics: docs.aws.amazon.com/sagemaker/latest/APIReference/API_RecommendationMetrics.html and
docs.aws.amazon.com/sagemaker/latest/dg/inference-recommender-interpret-results.html.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from plansmith.records.model import Record

LatencyUnit = Literal["ms", "us"]

ENDED = ("COMPLETED", "FAILED", "STOPPED", "DELETED")
"""The states of a job that does not change any more."""

_USUAL_USERS = 30
"""AWS's guide to load tests: an ml.c5.large reaches 30,000 requests a minute with 15 to 20 users."""

_MILLISECONDS_PER_MINUTE = 60_000
_SECONDS_PER_MINUTE = 60
_MARGIN = 3
"""More requests under way than so many times the users tell that a unit is wrong."""


class Recommendation(Record):
    """A configuration, with what it is expected to do; None where AWS has no figure.

    Attributes:
        instance_type: of a real-time endpoint; empty for a serverless one.
        instances: how many.
        serverless: memory and concurrency of a serverless endpoint.
        environment: variables of the container.
        cost_per_hour: of all instances, in US dollars.
        cost_per_inference: in US dollars.
        max_invocations: requests per minute.
        latency: of the model, in the unit of `JobResult.latency_unit`.
        cpu_percent: at that many requests.
        memory_percent: at that many requests.
        endpoint: that it was measured on, whose log stays.
    """

    instance_type: str = ""
    instances: int | None = None
    serverless: str = ""
    environment: dict[str, str] = Field(default_factory=dict)
    cost_per_hour: float | None = None
    cost_per_inference: float | None = None
    max_invocations: int | None = None
    latency: int | None = None
    cpu_percent: float | None = None
    memory_percent: float | None = None
    endpoint: str = ""

    @property
    def label(self) -> str:
        """The instances: `ml.g5.xlarge`, `2 ml.c5.large`."""
        if not self.instance_type:
            return self.serverless or "?"
        return self.instance_type if self.instances in {None, 1} else f"{self.instances} {self.instance_type}"

    @property
    def cost_per_million(self) -> float | None:
        """The cost of a million requests in US dollars."""
        return None if self.cost_per_inference is None else self.cost_per_inference * 1e6


class Benchmark(Record):
    """A load test of a job.

    Attributes:
        status: its state.
        configuration: what was tested, with its figures.
        failure: why it failed; empty where it did not.
    """

    status: str
    configuration: Recommendation
    failure: str = ""


class JobResult(Record):
    """A job.

    Attributes:
        job: its name.
        kind: Default or Advanced.
        status: its state.
        failure: why it failed; empty where it did not.
        seconds: from its creation to its end; None before that.
        recommendations: the cheapest inference first.
        benchmarks: its load tests.
        latency_unit: the unit of the latencies.
        unit_reason: by what that is known.
    """

    job: str
    kind: str
    status: str
    failure: str = ""
    seconds: float | None = None
    recommendations: tuple[Recommendation, ...] = ()
    benchmarks: tuple[Benchmark, ...] = ()
    latency_unit: LatencyUnit = "ms"
    unit_reason: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether it does not change any more."""
        return self.status in ENDED

    @property
    def failed(self) -> tuple[Benchmark, ...]:
        """The load tests that failed."""
        return tuple(benchmark for benchmark in self.benchmarks if benchmark.status == "FAILED")

    @property
    def progress(self) -> str:
        """`IN_PROGRESS: 1 of 3 load tests ended (ml.g5.xlarge COMPLETED, ml.g6.xlarge PENDING)`."""
        if not self.benchmarks:
            return self.status
        ended = sum(benchmark.status in ENDED for benchmark in self.benchmarks)
        states = ", ".join(f"{benchmark.configuration.label} {benchmark.status}" for benchmark in self.benchmarks)
        return f"{self.status}: {ended} of {len(self.benchmarks)} load tests ended ({states})"

    def latency_ms(self, recommendation: Recommendation) -> float | None:
        """The latency of the model in milliseconds."""
        if recommendation.latency is None:
            return None
        return recommendation.latency / 1000 if self.latency_unit == "us" else float(recommendation.latency)


def job_result(description: Mapping[str, Any], steps: Iterable[Mapping[str, Any]]) -> JobResult:
    """A job as SageMaker describes it, with its load tests as it lists them."""
    recommendations = [_configuration(row) for row in description.get("InferenceRecommendations", ())]
    benchmarks = [_benchmark(step) for step in steps]
    users = _max_users(description.get("InputConfig", {}).get("TrafficPattern", {}))
    measured = [*recommendations, *(benchmark.configuration for benchmark in benchmarks)]
    unit, reason = find_latency_unit(measured, users)
    start, end = description.get("CreationTime"), description.get("CompletionTime")
    cheapest_first = sorted(recommendations, key=lambda one: (one.cost_per_inference is None, one.cost_per_inference))
    return JobResult(
        job=description["JobName"],
        kind=description["JobType"],
        status=description["Status"],
        failure=description.get("FailureReason", ""),
        seconds=(end - start).total_seconds() if start and end else None,
        recommendations=tuple(cheapest_first),
        benchmarks=tuple(benchmarks),
        latency_unit=unit,
        unit_reason=reason,
    )


def find_latency_unit(measured: Sequence[Recommendation], max_users: int) -> tuple[LatencyUnit, str]:
    """The unit of latencies, and how that is known.

    AWS's pages call `ModelLatency` milliseconds (interpret-results) and microseconds (load-test), and print examples of
    both. By Little's law (L = λW), rate and latency tell how many requests are under way at a time; in the wrong unit
    that is a thousand times as many, far more than there are users.

    Args:
        measured: the configurations.
        max_users: the most users of the load; 0 where unknown.
    """
    under_way = max(
        (
            one.latency * one.max_invocations / _MILLISECONDS_PER_MINUTE
            for one in measured
            if one.latency and one.max_invocations
        ),
        default=None,
    )
    if under_way is None:
        return "ms", ""
    if under_way > _MARGIN * (max_users or _USUAL_USERS):
        return "us", f"in milliseconds, {under_way:,.0f} requests would have been under way at a time"
    return "ms", f"{under_way:,.1f} requests were under way at a time"


def _max_users(pattern: Mapping[str, Any]) -> int:
    stairs = pattern.get("Stairs")
    if stairs:
        return int(stairs.get("NumberOfSteps", 0) * stairs.get("UsersPerStep", 0))
    return max(
        (
            phase.get("InitialNumberOfUsers", 0)
            + phase.get("SpawnRate", 0) * phase.get("DurationInSeconds", 0) // _SECONDS_PER_MINUTE
            for phase in pattern.get("Phases", ())
        ),
        default=0,
    )


def _benchmark(step: Mapping[str, Any]) -> Benchmark:
    row = step.get("InferenceBenchmark", {})
    return Benchmark(status=step["Status"], configuration=_configuration(row), failure=row.get("FailureReason", ""))


def _configuration(row: Mapping[str, Any]) -> Recommendation:
    endpoint, metrics = row.get("EndpointConfiguration", {}), row.get("Metrics", {})
    variables = row.get("ModelConfiguration", {}).get("EnvironmentParameters", ())
    serverless = endpoint.get("ServerlessConfig")
    return Recommendation(
        instance_type=endpoint.get("InstanceType", ""),
        instances=endpoint.get("InitialInstanceCount"),
        serverless=f"serverless, {serverless['MemorySizeInMB']} MB, {serverless['MaxConcurrency']} at a time"
        if serverless
        else "",
        environment={variable["Key"]: variable["Value"] for variable in variables},
        cost_per_hour=_number(metrics.get("CostPerHour")),
        cost_per_inference=_number(metrics.get("CostPerInference")),
        max_invocations=_count(metrics.get("MaxInvocations")),
        latency=_count(metrics.get("ModelLatency")),
        cpu_percent=_number(metrics.get("CpuUtilization")),
        memory_percent=_number(metrics.get("MemoryUtilization")),
        endpoint=endpoint.get("EndpointName", ""),
    )


def _number(value: Any) -> float | None:
    """A figure; None for none, which AWS writes as NaN."""
    number = math.nan if value is None else float(value)
    return number if math.isfinite(number) else None


def _count(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else round(number)
