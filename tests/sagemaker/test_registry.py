"""`plansmith sagemaker register` on moto: a release becomes a model package, once, and is approved."""

from __future__ import annotations

import json
from typing import Any

import boto3
import pytest

from plansmith.errors import RepositoryError
from plansmith.records.release import MANIFEST_FILE
from plansmith.sagemaker.endpoint.loader import read_endpoint
from plansmith.sagemaker.registry import ModelRegistry, approved_release, with_approved_releases
from plansmith.triton.repository.repository import ModelRepository

from ..support.cli.command import check_refusal
from ..support.cli.in_process import InProcess
from ..support.sagemaker.endpoints import write_endpoint
from ..support.sagemaker.releases import publish_onnx
from ..support.stores.s3 import S3

CPU = {"instance_type": "ml.m5.large"}

pytestmark = [pytest.mark.slow, pytest.mark.services]


@pytest.fixture
def register(run: InProcess, s3: S3, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """The command line that registers the model `one` in a group of its own, named after the bucket."""
    publish_onnx(ModelRepository(run.folder / "artifacts" / "repository"), run.folder / "packages", "one")
    monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER", s3.endpoint)
    place = ("--upload", f"s3://{s3.bucket}/models", "--endpoint-url", s3.endpoint, "--region", "us-east-1")
    return "sagemaker", "register", "one", "--group", s3.bucket, *place


@pytest.fixture
def sagemaker(s3: S3) -> Any:
    """A plain client of the registry."""
    return boto3.client("sagemaker", endpoint_url=s3.endpoint, region_name="us-east-1")


def test_release_registered_once_and_approved(
    run: InProcess, s3: S3, register: tuple[str, ...], sagemaker: Any
) -> None:
    """A release is registered once and approved."""
    planned = run(*register, "--dry-run", "--json").document
    assert [call["operation"] for call in planned["calls"]] == ["create_model_package_group", "create_model_package"]
    assert s3.keys() == []
    first = run(*register, "--json").document
    package = sagemaker.describe_model_package(ModelPackageName=first["arn"])
    assert package["ModelApprovalStatus"] == first["status"] == "PendingManualApproval"
    specification = package["InferenceSpecification"]
    (container,) = specification["Containers"]
    assert container["ModelDataUrl"] == first["model_data_url"]
    assert container["Image"].endswith("/sagemaker-tritonserver:26.05-py3-cpu")
    assert container["Environment"] == {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "one"}
    assert "ml.c5.xlarge" in specification["SupportedRealtimeInferenceInstanceTypes"]
    metrics = package["ModelMetrics"]["ModelQuality"]["Statistics"]["S3Uri"]
    assert sorted(s3.keys()) == sorted(
        url.removeprefix(f"s3://{s3.bucket}/") for url in (first["model_data_url"], metrics)
    )
    report = s3.client.get_object(Bucket=s3.bucket, Key=metrics.removeprefix(f"s3://{s3.bucket}/"))["Body"].read()
    assert json.loads(report)["verdict"] == "passed"
    assert run(*register, "--json").document["calls"] == []
    approved = run(*register, "--status", "approved", "--json").document
    assert (approved["arn"], approved["status"]) == (first["arn"], "Approved")
    with ModelRegistry("us-east-1") as registry:
        assert approved_release(registry, s3.bucket, "one").arn == first["arn"]
    assert package["CustomerMetadataProperties"]["plansmith.precision"] == "fp32"


def test_endpoint_serves_approved_only(run: InProcess, s3: S3, register: tuple[str, ...]) -> None:
    """An endpoint serves what was approved and nothing newer."""
    run(*register, "--status", "approved")
    repository = ModelRepository(run.folder / "artifacts" / "repository")
    newer = publish_onnx(repository, run.folder / "packages", "one")
    assert newer.version == 2
    path = write_endpoint(run.folder, variant={"models": ["one"], "model_package_group": s3.bucket, **CPU})
    assert with_approved_releases(read_endpoint(path)).variants[0].models == ("one@1",)
    run(*register, "--status", "approved")
    assert with_approved_releases(read_endpoint(path)).variants[0].models == ("one@2",)


def test_other_release_of_name_unapproved(run: InProcess, s3: S3, register: tuple[str, ...]) -> None:
    """Another release of that name is not what was approved."""
    run(*register, "--status", "approved")
    repository = ModelRepository(run.folder / "artifacts" / "repository")
    manifest = repository.release("one", 1) / MANIFEST_FILE
    manifest.chmod(0o644)
    digest = repository.manifest("one", 1).release_digest
    manifest.write_text(manifest.read_text().replace(digest, "f" * len(digest)))
    path = write_endpoint(run.folder, variant={"models": ["one"], "model_package_group": s3.bucket, **CPU})
    with pytest.raises(RepositoryError, match="another release than the one that was approved"):
        with_approved_releases(read_endpoint(path))


def test_group_without_approval_says_next_step(run: InProcess, s3: S3, register: tuple[str, ...]) -> None:
    """A group without an approved release says what to do."""
    run(*register)
    with (
        ModelRegistry("us-east-1") as registry,
        pytest.raises(RepositoryError, match="no approved release of one") as none,
    ):
        approved_release(registry, s3.bucket, "one")
    assert "plansmith sagemaker register one --group" in none.value.remedy


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("--group", "-a"), 2, ("cannot be called '-a'",)),
        (("--upload", "folder"), 2, ("folder is a folder",)),
        (("--region", "mars-1"), 2, ("mars-1",)),
    ],
)
def test_refusals(
    words: tuple[str, ...], status: int, says: tuple[str, ...], run: InProcess, register: tuple[str, ...]
) -> None:
    check_refusal(run(*register, *words, "--json"), status, says)
