"""What a job of Inference Recommender found: its figures and their units, and own load tests beside them."""

from __future__ import annotations

from typing import Any

import pytest

from plansmith.sagemaker.recommender.results import (
    JobResult,
    LoadTestFigures,
    Recommendation,
    compare_recommendations,
    comparison_notes,
    find_latency_unit,
    job_result,
)

from ...support.sagemaker.recommender import AWS_EXAMPLE, CREATED, configuration

PHASE = {"InitialNumberOfUsers": 1, "SpawnRate": 1, "DurationInSeconds": 120}


def described(*recommendations: dict[str, Any]) -> JobResult:
    """The result of a completed job."""
    description = {
        "JobName": "bert-0a",
        "JobType": "Advanced",
        "Status": "COMPLETED",
        "CreationTime": CREATED,
        "InputConfig": {"TrafficPattern": {"TrafficType": "PHASES", "Phases": [PHASE]}},
        "InferenceRecommendations": list(recommendations),
    }
    return job_result(description, [])


@pytest.mark.parametrize(
    ("latency", "per_minute", "users", "unit"),
    [
        (263_596, 648, 0, "us"),  # AWS's example of a default job: 2.8 users in microseconds, 2,847 in milliseconds
        (100_000, 1113, 3, "us"),  # and of a load test: 1.9 users
        (45, 1200, 3, "ms"),  # 0.9 users
        (900, 1200, 6, "ms"),  # 18 users of 6: a percentile, not the mean
        (901, 1200, 6, "us"),
    ],
)
def test_latency_unit(latency: int, per_minute: int, users: int, unit: str) -> None:
    """The unit follows from how many requests would be under way at a time."""
    measured = Recommendation(instance_type="ml.c5.large", latency=latency, max_invocations=per_minute)
    assert find_latency_unit([measured], users)[0] == unit


def test_unknown_figures() -> None:
    """Figures that AWS does not have are None, and the cheapest recommendation comes first."""
    dear = {"CostPerHour": 0.69, "CostPerInference": 1e-05, "MaxInvocations": 1150, "ModelLatency": 100}
    cheap = {"CostPerHour": 1.2, "CostPerInference": 4e-06, "MaxInvocations": 5000, "ModelLatency": 12}
    result = described(
        configuration("ml.c5d.xlarge", {**dear, "CpuUtilization": "NaN"}, instances=3),
        configuration("ml.g5.xlarge", {**cheap, "MemoryUtilization": float("nan")}, variables={"A": "16"}),
        configuration("ml.m5.large"),
    )
    assert [row.label for row in result.recommendations] == ["ml.g5.xlarge", "3 ml.c5d.xlarge", "ml.m5.large"]
    first, second, third = result.recommendations
    assert (first.environment, first.memory_percent, second.cpu_percent) == ({"A": "16"}, None, None)
    assert third == Recommendation(instance_type="ml.m5.large", instances=1, endpoint="sm-epc-ml-m5-large")


def test_serverless_configuration() -> None:
    """A serverless endpoint is told by its memory and concurrency."""
    row = configuration("ml.m5.large", AWS_EXAMPLE)
    row["EndpointConfiguration"] |= {"ServerlessConfig": {"MemorySizeInMB": 4096, "MaxConcurrency": 10}}
    del row["EndpointConfiguration"]["InstanceType"]
    assert described(row).recommendations[0].label == "serverless, 4096 MB, 10 at a time"


def test_comparison() -> None:
    """Own figures are compared with those of the same instance type, and at the price of one instance."""
    metrics = {"CostPerHour": 3.0, "CostPerInference": 25e-06, "MaxInvocations": 2000, "ModelLatency": 30}
    result = described(configuration("ml.c5.large", metrics, instances=3), configuration("ml.g5.xlarge"))
    own = [
        LoadTestFigures(source="a", instance_type="ml.c5.large", requests_per_minute=1000, p95_ms=40),
        LoadTestFigures(source="b", requests_per_minute=500, p95_ms=2),
    ]
    rows = compare_recommendations(result, own)
    assert [(row.recommendation.instance_type, row.figures.source) for row in rows] == [
        ("ml.c5.large", "a"),
        ("ml.c5.large", "b"),
        ("ml.g5.xlarge", "b"),
    ]
    # One of three instances is $1 an hour, for 60,000 requests: $16.667 a million; AWS has $25, which is 50 % more.
    assert rows[0].own_cost_per_million == pytest.approx(16.6667, abs=1e-3)
    assert rows[0].cost_percent == pytest.approx(50.0)
    assert (rows[0].requests_percent, rows[0].latency_percent) == (100.0, -25.0)
    assert rows[2].requests_percent is None
    assert list(comparison_notes(result, own)) == ["b: without an instance type it has no cost: --compare TYPE=FILE"]
