"""SageMaker Inference Recommender over HTTP, which moto lacks: jobs that end after a few requests, with given figures.

Requests come from real clients, which check them against AWS's description of its services, as they do the answers.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import Any

import pytest
from moto.core.responses import ActionResult
from moto.sagemaker.exceptions import ResourceInUseException, ResourceNotFound
from moto.sagemaker.responses import SageMakerResponse

CREATED = datetime.datetime(2026, 11, 20, 12, 0, tzinfo=datetime.UTC)
MINUTES = 42

# The example of docs.aws.amazon.com/sagemaker/latest/dg/instance-recommendation-create.html: 263,596 are microseconds.
AWS_EXAMPLE = {
    "CostPerHour": 0.204,
    "CostPerInference": 5.246913580246914e-06,
    "MaxInvocations": 648,
    "ModelLatency": 263596,
}


def configuration(
    instance_type: str,
    metrics: dict[str, Any] | None = None,
    *,
    instances: int = 1,
    variables: dict[str, str] | None = None,
    failure: str = "",
) -> dict[str, Any]:
    """What was measured, or failed, on an instance type."""
    parameters = [{"Key": name, "ValueType": "String", "Value": value} for name, value in (variables or {}).items()]
    return {
        "EndpointConfiguration": {
            "EndpointName": f"sm-epc-{instance_type.replace('.', '-')}",
            "VariantName": "sm-epc-variant",
            "InstanceType": instance_type,
            "InitialInstanceCount": instances,
        },
        "ModelConfiguration": {"EnvironmentParameters": parameters},
        **({"Metrics": metrics} if metrics else {}),
        **({"FailureReason": failure} if failure else {}),
    }


@dataclass
class Recommender:
    """What becomes of jobs.

    Attributes:
        recommendations: of each job that completes.
        failures: load tests that fail.
        final_status: the state in which a job ends.
        reason: why it failed.
        requests: after how many descriptions a job has ended.
        jobs: the requests that created them, by name.
    """

    recommendations: list[dict[str, Any]] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    final_status: str = "COMPLETED"
    reason: str = ""
    requests: int = 3
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    _remaining: dict[str, int] = field(default_factory=dict)
    _stopped: set[str] = field(default_factory=set)

    def attach(self, patch: pytest.MonkeyPatch) -> None:
        """Answer for moto."""
        operations = {
            "create_inference_recommendations_job": self._create,
            "describe_inference_recommendations_job": self._describe,
            "list_inference_recommendations_job_steps": self._list,
            "stop_inference_recommendations_job": self._stop,
        }
        for operation, function in operations.items():

            def answer(response: SageMakerResponse, function: Any = function) -> ActionResult:
                parameters = response._get_params()
                return ActionResult(function(parameters["JobName"], parameters))

            patch.setattr(SageMakerResponse, operation, answer, raising=False)

    def _create(self, name: str, parameters: dict[str, Any]) -> dict[str, Any]:
        if name in self.jobs:
            raise ResourceInUseException(f"Job name {name} is in use")
        self.jobs[name], self._remaining[name] = parameters, self.requests
        return {"JobArn": self._arn(name)}

    def _describe(self, name: str, _: dict[str, Any]) -> dict[str, Any]:
        parameters, status = self._job(name), self._status(name)
        self._remaining[name] = max(0, self._remaining[name] - 1)
        answer: dict[str, Any] = {
            key: parameters[key]
            for key in ("JobName", "JobType", "RoleArn", "InputConfig", "StoppingConditions")
            if key in parameters
        }
        answer |= {"JobArn": self._arn(name), "Status": status, "CreationTime": CREATED, "LastModifiedTime": CREATED}
        if status in {"COMPLETED", "FAILED", "STOPPED"}:
            answer["CompletionTime"] = CREATED + datetime.timedelta(minutes=MINUTES)
        if status == "FAILED":
            answer["FailureReason"] = self.reason
        if status == "COMPLETED" and self.recommendations:
            answer["InferenceRecommendations"] = self.recommendations
        return answer

    def _list(self, name: str, _: dict[str, Any]) -> dict[str, Any]:
        self._job(name)
        running = "IN_PROGRESS" if self._remaining[name] > 0 else "COMPLETED"
        steps = [(running, row) for row in self.recommendations] + [("FAILED", row) for row in self.failures]
        return {
            "Steps": [
                {"StepType": "BENCHMARK", "JobName": name, "Status": status, "InferenceBenchmark": row}
                for status, row in steps
            ]
        }

    def _stop(self, name: str, _: dict[str, Any]) -> dict[str, Any]:
        self._job(name)
        self._stopped.add(name)
        return {}

    def _status(self, name: str) -> str:
        remaining = self._remaining[name]
        if remaining > 0:
            return "STOPPING" if name in self._stopped else "PENDING" if remaining == self.requests else "IN_PROGRESS"
        return "STOPPED" if name in self._stopped else self.final_status

    def _job(self, name: str) -> dict[str, Any]:
        if name not in self.jobs:
            raise ResourceNotFound(f"Job {name} does not exist")
        return self.jobs[name]

    @staticmethod
    def _arn(name: str) -> str:
        return f"arn:aws:sagemaker:us-east-1:123456789012:inference-recommendations-job/{name}"
