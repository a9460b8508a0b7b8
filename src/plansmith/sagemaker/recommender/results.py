"""Inference Recommender results: recommendations, and the load tests behind them.

Metrics: docs.aws.amazon.com/sagemaker/latest/APIReference/API_RecommendationMetrics.html and
docs.aws.amazon.com/sagemaker/latest/dg/inference-recommender-interpret-results.html.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from plansmith.errors import PlansmithError, UsageError
from plansmith.records.model import Record
from plansmith.sagemaker.deployment.account import Account, is_taken
from plansmith.sagemaker.deployment.apply import Deployment
from plansmith.sagemaker.deployment.current import Observation, Polling, wait_while_pending
from plansmith.sagemaker.recommender.plan import CREATE_JOB, DESCRIBE_JOB, PAYLOADS, PlannedJob
from plansmith.stores.backend.object_store import Moved, untold
from plansmith.system.aws.service import Call
from plansmith.system.tasks import Progress

LatencyUnit = Literal["ms", "us"]

ENDED = ("COMPLETED", "FAILED", "STOPPED", "DELETED")
"""The states of a job that does not change any more."""

_USUAL_USERS = 30
"""AWS's guide to load tests: an ml.c5.large reaches 30,000 requests a minute with 15 to 20 users."""

_MILLISECONDS_PER_MINUTE = 60_000
_SECONDS_PER_MINUTE = 60
_MARGIN = 3
"""More requests under way than so many times the users tell that a unit is wrong."""

_MINUTES_PER_HOUR = 60
_MILLION = 1e6
_ENDING = (*ENDED, "STOPPING", "DELETING")


class Recommendation(Record):
    """Recommendation: a configuration with its expected figures; None where AWS gives none.

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
    """Load test of a job.

    Attributes:
        status: its state.
        configuration: what was tested, with its figures.
        failure: why it failed; empty where it did not.
    """

    status: str
    configuration: Recommendation
    failure: str = ""


class JobResult(Record):
    """Result of a job.

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
        """Whether the job has reached a final state."""
        return self.status in ENDED

    @property
    def failed(self) -> tuple[Benchmark, ...]:
        """The failed load tests."""
        return tuple(benchmark for benchmark in self.benchmarks if benchmark.status == "FAILED")

    @property
    def progress(self) -> str:
        """The progress: `IN_PROGRESS: 1 of 3 load tests ended (ml.g5.xlarge COMPLETED, ml.g6.xlarge PENDING)`."""
        if not self.benchmarks:
            return self.status
        ended = sum(benchmark.status in ENDED for benchmark in self.benchmarks)
        states = ", ".join(f"{benchmark.configuration.label} {benchmark.status}" for benchmark in self.benchmarks)
        return f"{self.status}: {ended} of {len(self.benchmarks)} load tests ended ({states})"

    def latency_ms(self, recommendation: Recommendation) -> float | None:
        """Return the model latency in milliseconds."""
        if recommendation.latency is None:
            return None
        return recommendation.latency / 1000 if self.latency_unit == "us" else float(recommendation.latency)


def job_result(description: Mapping[str, Any], steps: Iterable[Mapping[str, Any]]) -> JobResult:
    """Build the result from SageMaker's description of a job and its list of load tests."""
    recommendations = [_configuration(row) for row in description.get("InferenceRecommendations", ())]
    benchmarks = [_benchmark(step) for step in steps]
    users = _max_users(description.get("InputConfig", {}).get("TrafficPattern", {}))
    measured = [*recommendations, *(benchmark.configuration for benchmark in benchmarks)]
    unit, reason = find_latency_unit(measured, users)
    start, end = description.get("CreationTime"), description.get("CompletionTime")
    cheapest_first = sorted(
        recommendations,
        key=lambda recommendation: (recommendation.cost_per_inference is None, recommendation.cost_per_inference),
    )
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
    """Determine the unit of latencies, and how it is known.

    AWS's pages call `ModelLatency` milliseconds (interpret-results) and microseconds (load-test), and print examples of
    both. By Little's law (L = λW), rate and latency tell how many requests are under way at a time; in the wrong unit
    that is a thousand times as many, far more than there are users.

    Args:
        measured: the configurations.
        max_users: the most users of the load; 0 where unknown.
    """
    under_way = max(
        (
            recommendation.latency * recommendation.max_invocations / _MILLISECONDS_PER_MINUTE
            for recommendation in measured
            if recommendation.latency and recommendation.max_invocations
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
    """Return a number; None if missing, which AWS encodes as NaN."""
    number = math.nan if value is None else float(value)
    return number if math.isfinite(number) else None


def _count(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else round(number)


class LoadTestFigures(Record):
    """Figures of a load test's best stage.

    Attributes:
        source: its file and stage.
        instance_type: that it ran on; empty where that is not said.
        requests_per_minute: that were answered.
        p95_ms: latency at that rate, as the client saw it.
        notes: what a reader has to know.
    """

    source: str
    instance_type: str = ""
    requests_per_minute: float
    p95_ms: float
    notes: tuple[str, ...] = ()


class ComparedRecommendation(Record):
    """Recommendation compared with our own load test; None for unknown figures.

    Attributes:
        recommendation: AWS's; its latency is that of the model alone.
        figures: our own; their latency is what the client waited.
        requests_percent: by how much AWS's requests per minute exceed ours, in percent of ours.
        latency_percent: by how much AWS's latency exceeds ours, in percent of ours.
        own_cost_per_million: of a million requests at our rate and AWS's price of the instance type, in US dollars.
        cost_percent: by how much AWS's cost per million exceeds ours, in percent of ours.
    """

    recommendation: Recommendation
    figures: LoadTestFigures
    requests_percent: float | None
    latency_percent: float | None
    own_cost_per_million: float | None
    cost_percent: float | None


def compare_recommendations(result: JobResult, figures: Sequence[LoadTestFigures]) -> list[ComparedRecommendation]:
    """Compare each recommendation with our figures of the same instance type, or with those that name none."""
    return [
        _compare(result, recommendation, own)
        for recommendation in result.recommendations
        for own in figures
        if own.instance_type in {"", recommendation.instance_type}
    ]


def comparison_notes(result: JobResult, figures: Sequence[LoadTestFigures]) -> Iterator[str]:
    """Return notes for comparing the two."""
    types = sorted({recommendation.instance_type for recommendation in result.recommendations} - {""})
    for own in figures:
        yield from (f"{own.source}: {note}" for note in own.notes)
        if not own.instance_type:
            yield f"{own.source}: without an instance type it has no cost: --compare TYPE=FILE"
        elif own.instance_type not in types:
            yield f"{own.source} is of {own.instance_type}, and the job recommends {', '.join(types) or 'none'}"


def _compare(result: JobResult, recommendation: Recommendation, own: LoadTestFigures) -> ComparedRecommendation:
    cost = _own_cost(recommendation, own)
    return ComparedRecommendation(
        recommendation=recommendation,
        figures=own,
        requests_percent=_percent(recommendation.max_invocations, own.requests_per_minute),
        latency_percent=_percent(result.latency_ms(recommendation), own.p95_ms),
        own_cost_per_million=cost,
        cost_percent=_percent(recommendation.cost_per_million, cost),
    )


def _own_cost(recommendation: Recommendation, own: LoadTestFigures) -> float | None:
    """Return the cost of a million requests on one instance; None if the load test ran on another machine.

    A cost per hour is that of all instances: the example of AWS's guide has $0.69 for 3 ml.c5d.xlarge.
    """
    if not own.instance_type or recommendation.cost_per_hour is None or not own.requests_per_minute:
        return None
    per_hour = recommendation.cost_per_hour / (recommendation.instances or 1)
    return per_hour / (own.requests_per_minute * _MINUTES_PER_HOUR) * _MILLION


def _percent(value: float | None, own: float | None) -> float | None:
    return (value - own) / own * 100 if value is not None and own else None


def start_job(account: Account, planned: PlannedJob, progress: Progress, transfer: Moved = untold) -> None:
    """Send the requests of a job; the last one starts it.

    Args:
        account: of the endpoint.
        planned: of `plan_job`.
        progress: told each step.
        transfer: told how many more bytes of archives are on their way.

    Raises:
        PlansmithError: AWS refuses one, does not allow it, or cannot be asked. What was created stays for the next run.
    """
    for upload in planned.uploads:
        progress(f"upload {upload.key}")
        account.upload(upload, transfer)
    account.put(PAYLOADS, planned.payload.name, planned.payload.archive)
    deployment = Deployment(account, progress=progress)
    for call in planned.calls:
        try:
            deployment.execute(call)
        except PlansmithError as error:
            # A job of this name has the same content: another run started it.
            if call.operation != CREATE_JOB or not is_taken(error):
                raise


def wait_for_job(account: Account, job: str, polling: Polling, progress: Progress) -> JobResult:
    """Wait for a job to end and return its result.

    Args:
        account: of the endpoint.
        job: its name.
        polling: how long and how often.
        progress: told what changed.

    Raises:
        UsageError: there is no such job.
        StillPendingError: it takes longer than the limit, and goes on.
        EnvironmentFault: SageMaker cannot be asked, or does not allow it.
    """

    def observe() -> Observation[JobResult]:
        result = read_job(account, job)
        return Observation(result, result.status, result.progress, is_pending=not result.has_ended)

    return wait_while_pending(observe, polling, progress)


def read_job(account: Account, job: str) -> JobResult:
    """Read the current state of a job.

    Raises:
        UsageError: there is no such job.
        EnvironmentFault: SageMaker cannot be asked, or does not allow it.
    """
    description = account.find(DESCRIBE_JOB, JobName=job)
    if description is None:
        raise UsageError(
            f"there is no job {job} in {account.region}",
            remedy=f"list them: aws sagemaker list-inference-recommendations-jobs --region {account.region}",
        )
    return job_result(description, account.pages("list_inference_recommendations_job_steps", "Steps", JobName=job))


def stop_job(account: Account, job: str) -> bool:
    """Stop a job and return whether it was running.

    Raises:
        UsageError: there is no such job.
        EnvironmentFault: SageMaker cannot be asked, or does not allow it.
    """
    if read_job(account, job).status in _ENDING:
        return False
    operation = "stop_inference_recommendations_job"
    account.execute(Call(service="sagemaker", operation=operation, parameters={"JobName": job}))
    return True
