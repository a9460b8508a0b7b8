"""A package of a SageMaker Model Registry (moto, over HTTP) is told what came of its builds in its metadata."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

from plansmith.config.service_triggers import SageMakerRegistry
from plansmith.errors import EnvironmentFault, UsageError
from plansmith.triggers.registries.delivery import Delivery, Event, Ignored
from plansmith.triggers.registries.sagemaker import read_message
from plansmith.triggers.write_back import MOST_PROPERTIES, SageMakerWriter

from ...support.prefect.programs import free_port
from ...support.triggers.builds import build, telling

pytestmark = pytest.mark.slow

OWN = {"team": "search", "owner": "jo"}


@dataclass
class Registry:
    """A registry with one approved package."""

    client: Any
    endpoint: str
    arn: str

    def config(self, endpoint: str = "") -> SageMakerRegistry:
        return SageMakerRegistry(
            type="sagemaker",
            queue_url="https://sqs.eu-west-1.amazonaws.com/123456789012/q",
            sagemaker_endpoint_url=endpoint or self.endpoint,
            write_back=True,
        )

    def event(self, arn: str = "") -> Event:
        return Event(registry="sagemaker", model="ranker", version=arn or self.arn, change="approved")

    def write(self, *builds: Any, arn: str = "", endpoint: str = "", ours: bool = True) -> bool:
        report = telling(*builds, event=self.event(arn))
        return SageMakerWriter(self.config(endpoint)).write(report, lambda: ours)

    def described(self) -> dict[str, Any]:
        description = self.client.describe_model_package(ModelPackageName=self.arn)
        assert isinstance(description, dict)
        return description

    @property
    def metadata(self) -> dict[str, str]:
        return dict(self.described().get("CustomerMetadataProperties") or {})


@pytest.fixture
def registry(s3_server: str, aws: None) -> Iterator[Registry]:  # noqa: ARG001
    from botocore.session import Session

    client = Session().create_client("sagemaker", region_name="eu-west-1", endpoint_url=s3_server)
    group = f"ranker-{uuid4().hex}"
    client.create_model_package_group(ModelPackageGroupName=group)
    container = {"Image": "registry/image:1", "ModelDataUrl": "s3://models/ranker.tar.gz"}
    response = client.create_model_package(
        ModelPackageGroupName=group,
        ModelApprovalStatus="Approved",
        InferenceSpecification={
            "Containers": [container],
            "SupportedContentTypes": ["application/octet-stream"],
            "SupportedResponseMIMETypes": ["application/octet-stream"],
        },
        CustomerMetadataProperties=OWN,
    )
    yield Registry(client, s3_server, response["ModelPackageArn"])
    client.close()


def test_package_has_outcome_metadata(registry: Registry) -> None:
    """A package has what came of it beside its own metadata."""
    assert registry.metadata == OWN
    assert registry.write(build())
    values = registry.metadata
    assert values["team"] == "search"
    assert values["plansmith.verdict"] == values["plansmith.ranker.local-cpu.verdict"] == "published"
    assert values["plansmith.ranker.local-cpu.figures"] == "bytes=1024 precision=fp16 min_cosine=0.9999"
    for name, value in values.items():
        assert re.fullmatch(r"[\w .:/=+\-@]{1,128}", name)
        assert re.fullmatch(r"[\w .:/=+\-@]{1,256}", value)


def test_repetition_changes_nothing(registry: Registry) -> None:
    """The same told again changes nothing."""
    assert registry.write(build())
    before = registry.described()["LastModifiedTime"]
    assert registry.write(build())
    assert registry.described()["LastModifiedTime"] == before
    assert registry.write(build("refused"))
    assert registry.metadata["plansmith.ranker.local-cpu.manifest"] == "none"


def test_what_was_written_starts_nothing(registry: Registry) -> None:
    assert registry.write(build())
    description = registry.described()
    detail = {
        "ModelPackageGroupName": description["ModelPackageGroupName"],
        "ModelPackageArn": registry.arn,
        "ModelPackageStatus": "Completed",
        "ModelApprovalStatus": "Approved",
        "InferenceSpecification": description["InferenceSpecification"],
        "CustomerMetadataProperties": registry.metadata,
    }
    body = {"source": "aws.sagemaker", "detail-type": "SageMaker Model Package State Change", "detail": detail}
    results = []
    for changed in ("CustomerMetadataProperties", "ModelApprovalStatus"):
        whole = {**body, "detail": {**detail, "UpdatedModelPackageFields": [changed]}}
        results.append(read_message(registry.config(), json.dumps(whole).encode(), registry="sagemaker"))
    assert isinstance(results[0], Ignored)
    assert isinstance(results[1], Delivery)


def test_whoever_lost_it_writes_nothing(registry: Registry) -> None:
    assert not registry.write(build(), ours=False)
    assert registry.metadata == OWN


def test_excess_metadata_refused_beforehand(registry: Registry) -> None:
    """More than a package holds is refused before anything is written."""
    many = [build(target=f"target-{number}") for number in range(9)]
    with pytest.raises(UsageError, match=f"would have 57 entries, and SageMaker takes {MOST_PROPERTIES}") as refused:
        registry.write(*many)
    assert "fewer targets" in refused.value.remedy
    assert registry.metadata == OWN
    assert registry.write(*many[:7])
    assert len(registry.metadata) == len(OWN) + 7 * 6 + 1


def test_missing_package_refused(registry: Registry) -> None:
    """A package that is gone is refused."""
    with pytest.raises(UsageError, match="refuses describe model package") as refused:
        registry.write(build(), arn=f"{registry.arn[:-1]}7")
    assert "aws sagemaker describe-model-package" in refused.value.remedy


def test_absent_registry_is_passing_fault(registry: Registry) -> None:
    """A registry that is away is a fault that may pass."""
    with pytest.raises(EnvironmentFault, match="cannot be reached") as away:
        registry.write(build(), endpoint=f"http://127.0.0.1:{free_port()}")
    assert away.value.transient


def test_missing_credentials_told_remedy(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without credentials, it is said what to set."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(EnvironmentFault, match="no usable AWS credentials"):
        registry.write(build())
