"""An account of AWS on this machine, with a bucket and an endpoint's name that no other test has."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest

from plansmith.sagemaker.deployment.account import Account
from plansmith.sagemaker.deployment.apply import Deployment, SmokeResult
from plansmith.sagemaker.deployment.current import Polling
from plansmith.sagemaker.deployment.deploy import PlannedDeployment, plan_deployment
from plansmith.sagemaker.endpoint.spec import EndpointSpec

from .control_plane import ControlPlane, create_role
from .endpoints import archive, endpoint_spec

QUICK = Polling(limit_seconds=120, interval_seconds=0)
IMPATIENT = Polling(limit_seconds=0, interval_seconds=0)


@dataclass
class AwsAccount:
    """The account.

    Attributes:
        folder: takes files.
        plane: SageMaker's control plane.
        name: the endpoint's.
        bucket: the bucket's.
        progress: the lines of progress.
    """

    folder: Path
    plane: ControlPlane
    name: str = field(default_factory=lambda: f"bert-{uuid.uuid4().hex[:8]}")
    bucket: str = field(default_factory=lambda: f"models-{uuid.uuid4().hex[:12]}")
    progress: list[str] = field(default_factory=list)

    def spec(self, **changes: Any) -> EndpointSpec:
        """The endpoint's spec."""
        values = {"name": self.name, "bucket": f"s3://{self.bucket}/endpoints", "smoke_test": False}
        return endpoint_spec(self.folder, **{**values, **changes})

    def plan(
        self, content: str = "", *, archive_values: dict[str, Any] | None = None, dry_run: bool = False, **changes: Any
    ) -> PlannedDeployment:
        """The plan of a deployment of an archive with some content."""
        spec = self.spec(**changes)
        served = archive(self.folder, content=content, **(archive_values or {}))
        with Account(spec) as account:
            archives = {variant.name: (served,) for variant in spec.all_variants}
            return plan_deployment(spec, archives, account, dry_run=dry_run)

    def deploy(self, content: str = "", polling: Polling = QUICK, **changes: Any) -> list[SmokeResult]:
        """Deploy it."""
        self.plane.requests.clear()
        return self.apply(self.plan(content, **changes), polling)

    def apply(self, planned: PlannedDeployment, polling: Polling = QUICK) -> list[SmokeResult]:
        """Carry out a plan."""
        with Account(planned.spec) as account:
            return Deployment(account, polling, self.progress.append).apply(planned.plan, planned.requests)

    def describe(self) -> dict[str, Any] | None:
        """The endpoint in SageMaker's description; None where there is none."""
        client = boto3.client("sagemaker")
        names = [row["EndpointName"] for row in client.list_endpoints()["Endpoints"]]
        description: dict[str, Any] | None = (
            client.describe_endpoint(EndpointName=self.name) if self.name in names else None
        )
        client.close()
        return description

    def config(self) -> str:
        """The configuration of the endpoint, which is in service."""
        description = self.describe()
        assert description is not None
        assert description["EndpointStatus"] == "InService"
        return str(description["EndpointConfigName"])

    def resources(self) -> dict[str, list[str]]:
        """The names of its models and configurations."""
        client = boto3.client("sagemaker")
        models = [row["ModelName"] for row in client.list_models()["Models"]]
        configs = [row["EndpointConfigName"] for row in client.list_endpoint_configs()["EndpointConfigs"]]
        client.close()
        return {
            "models": [name for name in models if self.name in name],
            "configs": [name for name in configs if self.name in name],
        }

    def keys(self) -> list[str]:
        """All keys of the bucket."""
        client = boto3.client("s3")
        keys = [row["Key"] for row in client.list_objects_v2(Bucket=self.bucket).get("Contents", ())]
        client.close()
        return keys


@pytest.fixture(scope="session")
def loader() -> Any:
    """AWS's descriptions of its services, which take a second to read."""
    from botocore.loaders import create_loader

    return create_loader()


@pytest.fixture
def aws_endpoint(aws: None, s3_server: str, loader: Any, monkeypatch: pytest.MonkeyPatch) -> str:  # noqa: ARG001
    """All services of AWS at one address, and no pauses."""
    monkeypatch.setattr("botocore.session.create_loader", lambda *_: loader)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setattr("plansmith.sagemaker.deployment.current.time.sleep", lambda _: None)
    create_role()
    return s3_server


@pytest.fixture
def account(aws_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AwsAccount:
    """An account with an empty bucket."""
    assert aws_endpoint
    created = AwsAccount(tmp_path, ControlPlane(monkeypatch))
    client = boto3.client("s3")
    client.create_bucket(Bucket=created.bucket)
    client.close()
    return created
