"""Specification of a SageMaker Inference Recommender job, for the endpoint whose model it tests.

Limits: CreateInferenceRecommendationsJob in docs.aws.amazon.com/sagemaker/latest/APIReference, as botocore has it, and
docs.aws.amazon.com/sagemaker/latest/dg/inference-recommender-load-test.html.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import ceil, prod
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from plansmith.config.spec import Problem
from plansmith.records.fields import Count, matching
from plansmith.records.model import Record
from plansmith.sagemaker.endpoint.instances import find_instance, nearest_instances
from plansmith.sagemaker.endpoint.variant import Name, VariantSpec
from plansmith.triton.client import Encoding

_KEY = "recommendation_job"
_VARIABLE = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,63}")
_FRAMEWORK_VERSION = re.compile(r"[0-9]\.[A-Za-z0-9.-]{1,8}")
_BURSTABLE = ("ml.t2.", "ml.t3.", "ml.t3a.")
_MAX_CONFIGURATIONS, _MAX_VARIABLES, _MAX_VALUES = 10, 5, 3
_DEFAULT_SECONDS, _MAX_SECONDS = 7200, 18_000
_SECONDS_PER_MINUTE = 60

_PhaseSeconds = Annotated[Count, Field(ge=120, le=3600)]


def _check_instance(value: str) -> str:
    if value.startswith(_BURSTABLE):
        raise ValueError("is burstable: Inference Recommender tests no instances whose speed is not steady")
    if find_instance(value) is None:
        near = nearest_instances(value)
        raise ValueError("is no known instance type" + (f"; did you mean {' or '.join(near)}?" if near else ""))
    return value


class Phase(Record):
    """Traffic phase: users that send requests one after another, and those that join; the API's field names."""

    InitialNumberOfUsers: Annotated[Count, Field(ge=1)] = Field(description="Users at its start.")
    SpawnRate: Annotated[Count, Field(ge=0)] = Field(default=0, description="New users per minute.")
    DurationInSeconds: _PhaseSeconds = Field(description="Its length, 120 to 3600 seconds.")

    @property
    def final_users(self) -> int:
        """The number of users at its end."""
        return self.InitialNumberOfUsers + self.SpawnRate * self.DurationInSeconds // _SECONDS_PER_MINUTE


class Stairs(Record):
    """Traffic stairs: users that join step by step; the API's field names."""

    DurationInSeconds: _PhaseSeconds = Field(description="The length of each step, 120 to 3600 seconds.")
    NumberOfSteps: Annotated[Count, Field(ge=1)] = Field(description="The number of steps.")
    UsersPerStep: Annotated[Count, Field(ge=1, le=3)] = Field(description="New users per step, 1 to 3.")


class StoppingConditions(Record):
    """Stopping conditions of a configuration's load test; any of them ends it."""

    max_invocations: Annotated[Count, Field(ge=1, le=30_000)] | None = Field(
        default=None, description="Requests per minute that the endpoint has to take."
    )
    p95_ms: Annotated[Count, Field(ge=1)] | None = Field(
        default=None, description="Limit of the model's latency at the 95th percentile, in milliseconds."
    )
    flat_invocations: Literal["stop", "continue"] = Field(
        default="stop", description="What to do when more users bring no more requests."
    )


class RecommendationJob(Record):
    """Inference Recommender job: default, or advanced if it has phases or stairs."""

    variant: Name | None = Field(default=None, description="The variant whose model is tested; the only one.")
    instance_types: tuple[Annotated[str, AfterValidator(_check_instance)], ...] = Field(
        default=(),
        max_length=_MAX_CONFIGURATIONS,
        description="Instance types to test; a default job tests those that AWS chooses when empty.",
    )
    phases: tuple[Phase, ...] = Field(default=(), description="Of an advanced job: its load, phase by phase.")
    stairs: Stairs | None = Field(default=None, description="Of an advanced job: its load in steps.")
    stop_when: StoppingConditions | None = Field(default=None, description="Of an advanced job: ends a load test.")
    environment: dict[
        Annotated[str, matching(_VARIABLE, "is no name of an environment variable")],
        Annotated[tuple[Annotated[str, Field(max_length=128)], ...], Field(min_length=1, max_length=_MAX_VALUES)],
    ] = Field(
        default_factory=dict,
        max_length=_MAX_VARIABLES,
        description="Of an advanced job: environment variables of the container, and the values of each to test.",
    )
    max_tests: Annotated[Count, Field(ge=1, le=_MAX_CONFIGURATIONS)] | None = Field(
        default=None, description="Of an advanced job: the most load tests; one for each configuration."
    )
    max_parallel_tests: Annotated[Count, Field(ge=1, le=_MAX_CONFIGURATIONS)] | None = Field(
        default=None, description="Of an advanced job: the most load tests at a time; all of them."
    )
    duration_seconds: Annotated[Count, Field(ge=1, le=_MAX_SECONDS)] | None = Field(
        default=None,
        description="Of an advanced job: its longest duration; two hours, or as its load needs.",
    )
    encoding: Encoding = Field(
        default="json", description="Of the sample requests: json, or binary, Triton's form for large tensors and FP16."
    )
    payload: tuple[str, ...] = Field(
        default=(), description="Files with sample requests, relative to the spec; the release's when empty."
    )
    content_type: Annotated[str, Field(min_length=1, max_length=256)] = Field(
        default="application/json", description="Content type of the files of `payload`."
    )
    domain: Literal["COMPUTER_VISION", "NATURAL_LANGUAGE_PROCESSING", "MACHINE_LEARNING"] | None = Field(
        default=None, description="Domain of the model; by its task when left out."
    )
    task: str | None = Field(
        default=None, description="AWS's name of the task, such as FILL_MASK; by the model's when left out."
    )
    framework: Literal["TENSORFLOW", "PYTORCH", "XGBOOST", "SAGEMAKER-SCIKIT-LEARN"] = Field(
        default="PYTORCH", description="Framework in which the model was trained."
    )
    framework_version: Annotated[str, matching(_FRAMEWORK_VERSION, "is no version such as '2.9'", or_empty=True)] = (
        Field(default="", description="Its version, such as '2.9'.")
    )
    nearest_model: str = Field(default="", description="AWS's name of the most similar known model, such as resnet50.")

    @property
    def is_advanced(self) -> bool:
        """Whether it is a load test with its own phases or stairs."""
        return bool(self.phases) or self.stairs is not None

    @property
    def traffic(self) -> dict[str, Any]:
        """The traffic in the API's form (TrafficPattern)."""
        if self.stairs is not None:
            return {"TrafficType": "STAIRS", "Stairs": self.stairs.model_dump()}
        return {"TrafficType": "PHASES", "Phases": [phase.model_dump() for phase in self.phases]}

    @property
    def test_seconds(self) -> int:
        """The duration of one load test, without instance start-up."""
        if self.stairs is not None:
            return self.stairs.NumberOfSteps * self.stairs.DurationInSeconds
        return sum(phase.DurationInSeconds for phase in self.phases)

    @property
    def configurations(self) -> int:
        """The number of configurations to test: instance types with each combination of variable values."""
        return len(self.instance_types) * prod(len(values) for values in self.environment.values())

    @property
    def tests(self) -> int:
        """The maximum number of load tests of an advanced job."""
        return min(self.configurations, self.max_tests or _MAX_CONFIGURATIONS)

    @property
    def parallel_tests(self) -> int:
        """The number of load tests that run in parallel."""
        return min(self.tests, self.max_parallel_tests or _MAX_CONFIGURATIONS)

    @property
    def seconds(self) -> int:
        """The maximum duration of an advanced job."""
        needed = ceil(self.tests / self.parallel_tests) * self.test_seconds
        return self.duration_seconds or min(_MAX_SECONDS, max(_DEFAULT_SECONDS, needed))


def find_job_contradictions(job: RecommendationJob, variants: Sequence[VariantSpec]) -> Iterator[Problem]:
    """Return conflicts between values of a job that are each valid alone.

    Args:
        job: the job.
        variants: the production variants of the endpoint.
    """
    names = [variant.name for variant in variants]
    tested = [variant for variant in variants if job.variant in {None, variant.name}]
    if not tested:
        yield _problem("variant", f"{job.variant!r} is none of {', '.join(names)}")
    elif len(tested) > 1:
        yield _problem("variant", f"name one of {', '.join(names)}")
    elif tested[0].multi_model:
        yield _problem("variant", f"{tested[0].name} serves many models, and the requests of a job can name none")
    if len(set(job.instance_types)) < len(job.instance_types):
        yield _problem("instance_types", "one is named twice")
    yield from _load_contradictions(job) if job.is_advanced else _default_contradictions(job)


def _default_contradictions(job: RecommendationJob) -> Iterator[Problem]:
    for key in ("stop_when", "environment", "max_tests", "max_parallel_tests", "duration_seconds"):
        if getattr(job, key):
            yield _problem(key, "is for advanced jobs, which have phases or stairs")


def _load_contradictions(job: RecommendationJob) -> Iterator[Problem]:
    if not job.instance_types:
        yield _problem("instance_types", "name what an advanced job tests, such as [ml.g5.xlarge]")
    if job.phases and job.stairs:
        yield _problem("stairs", "take the place of phases: leave one out")
    if job.stop_when is None or (job.stop_when.max_invocations is None and job.stop_when.p95_ms is None):
        yield _problem("stop_when", "name max_invocations or p95_ms, at which a load test ends")
    if job.duration_seconds is not None and job.test_seconds > job.duration_seconds:
        yield _problem("duration_seconds", f"{job.duration_seconds} is less than the {job.test_seconds} s of its load")
    if job.max_tests and job.max_parallel_tests and job.max_parallel_tests > job.max_tests:
        yield _problem("max_parallel_tests", f"{job.max_parallel_tests} is more than the {job.max_tests} of max_tests")


def _problem(key: str, message: str) -> Problem:
    return Problem((_KEY, key), "wrong", f"'{_KEY}.{key}': {message}")
