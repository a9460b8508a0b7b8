"""Versions whose files lie in S3, where the server gives addresses only: fetched from buckets that were named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plansmith.config.source_reference import RegisteredName
from plansmith.errors import EnvironmentFault, SourceError
from plansmith.sources.mlflow.model_version import FlavorOptions, RegisteredVersion, find_version

from .registry import Registry
from .written import FOLDER

BUCKET = "models"


@pytest.fixture
def bucket(
    s3_server: str,
    aws: None,  # noqa: ARG001
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    """A client of a server on which a version lies in a bucket of its own, that the registry names."""
    import boto3

    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("PLANSMITH_MLFLOW_ALLOWED", f"s3://{BUCKET}/team")
    client = boto3.client("s3", endpoint_url=s3_server)
    client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    registry.addresses["net/1"] = f"s3://{BUCKET}/team/net"
    put(client, "team/net/MLmodel", (FOLDER / "onnx" / "MLmodel").read_bytes())
    put(client, "team/net/model.onnx", b"graph")
    put(client, "team/net/weights.bin", b"weights")
    put(client, "team/network/secret", b"of another model")
    yield client
    for item in client.list_objects_v2(Bucket=BUCKET).get("Contents", ()):
        client.delete_object(Bucket=BUCKET, Key=item["Key"])
    client.delete_bucket(Bucket=BUCKET)


def put(client: Any, key: str, content: bytes) -> None:
    client.put_object(Bucket=BUCKET, Key=key, Body=content)


def find_registered() -> RegisteredVersion:
    return find_version(RegisteredName("net", "1"), FlavorOptions(trust_remote_code=False, allow_pickle=False))


@pytest.mark.slow
@pytest.mark.usefixtures("bucket")
def test_named_bucket_files_fetched(tmp_path: Path) -> None:
    """Files of a named bucket are brought."""
    version = find_registered()
    assert version.download(tmp_path, lambda *_: None) == {"scheme": "onnx", "graph": "model.onnx"}
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "model.onnx": b"graph",
        "weights.bin": b"weights",
    }


@pytest.mark.slow
@pytest.mark.parametrize("allowed", ["", "s3://other", "s3://models/elsewhere", "s3://models/team/ne"])
def test_unnamed_bucket_not_asked(bucket: Any, allowed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket that nobody named is not asked."""
    monkeypatch.setenv("PLANSMITH_MLFLOW_ALLOWED", allowed)
    monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(SourceError, match="no place that models may come from"):
        find_registered()
    del bucket


def test_escaping_keys_refused(bucket: Any) -> None:
    """Keys that lead out of the folder are refused."""
    put(bucket, "team/net/../../etc/passwd", b"x")
    with pytest.raises(SourceError, match="leads out of its folder"):
        find_registered()


def test_folder_marker_is_no_file(bucket: Any, tmp_path: Path) -> None:
    """A marker of a folder is no file."""
    put(bucket, "team/net/", b"")
    put(bucket, "team/net/more/", b"")
    find_registered().download(tmp_path, lambda *_: None)
    assert not (tmp_path / "more").exists()


def test_missing_and_silent_told_apart(bucket: Any, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is gone and what does not answer are told apart."""
    registry.addresses["net/1"] = f"s3://{BUCKET}/team/nothing"
    with pytest.raises(SourceError, match=f"there is nothing at s3://{BUCKET}/team/nothing, where"):
        find_registered()
    monkeypatch.setenv("PLANSMITH_MLFLOW_ALLOWED", "s3://gone")
    registry.addresses["net/1"] = "s3://gone/net"
    with pytest.raises(SourceError, match="there is no bucket 'gone'"):
        find_registered()
    monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(EnvironmentFault, match="cannot be reached") as away:
        find_registered()
    assert away.value.transient
    del bucket
