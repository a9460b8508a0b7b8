"""Archives in S3: whole under their names, sent once, never overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.triton.repository.repository import ModelRepository

from ..support.cli.command import check_refusal
from ..support.cli.in_process import InProcess
from ..support.sagemaker.releases import publish_onnx
from ..support.stores.s3 import S3

pytestmark = pytest.mark.slow


@pytest.fixture
def upload_command(run: InProcess, s3: S3) -> tuple[str, ...]:
    """The command line that uploads both of two models."""
    repository = ModelRepository(run.folder / "artifacts" / "repository")
    for model in ("one", "two"):
        publish_onnx(repository, run.folder / "packages", model)
    place = f"s3://{s3.bucket}/archives"
    return "sagemaker", "package", "one", "two", "--multi-model", "--upload", place, "--endpoint-url", s3.endpoint


def test_archives_are_sent_once(run: InProcess, s3: S3, upload_command: tuple[str, ...]) -> None:
    planned = run(*upload_command, "--dry-run", "--json").document
    assert [upload["sent"] for upload in planned["uploads"]] == [True, True]
    assert s3.keys() == []
    sent = run(*upload_command)
    assert sent.status == 0, sent
    assert f"ModelDataUrl=s3://{s3.bucket}/archives/\n" in sent.stdout
    result = run(*upload_command, "--json").document
    assert [upload["sent"] for upload in result["uploads"]] == [False, False]
    for archive, upload in zip(result["archives"], result["uploads"], strict=True):
        key = upload["uri"].removeprefix(f"s3://{s3.bucket}/")
        response = s3.client.get_object(Bucket=s3.bucket, Key=key)
        assert response["Metadata"] == {"sha256": archive["digest"]}
        assert response["Body"].read() == (run.folder / archive["file"]).read_bytes()


@pytest.mark.parametrize("metadata", [{}, {"sha256": "0" * 64}])
def test_other_content_is_not_overwritten(
    metadata: dict[str, str], run: InProcess, s3: S3, upload_command: tuple[str, ...]
) -> None:
    archive = run(*upload_command, "--dry-run", "--json").document["archives"][0]
    key, content = f"archives/{Path(archive['file']).name}", b"x" * archive["bytes"]
    s3.client.put_object(Bucket=s3.bucket, Key=key, Body=content, Metadata=metadata)
    check_refusal(run(*upload_command, "--json"), 7, ("already, with other content", "choose another --upload"))
    assert s3.client.get_object(Bucket=s3.bucket, Key=key)["Body"].read() == content
