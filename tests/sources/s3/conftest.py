"""What the tests of models in buckets share: a bucket on a server (moto), reached through what notes requests."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plansmith.config.source_reference import parse_reference
from plansmith.config.spec import ModelSpec, make_spec
from plansmith.records.model import SourceModel
from plansmith.steps.fetch import fetch
from plansmith.steps.runner import Listener, StageRunner, StepResult

from ...support.servers.aws_server import aws, s3_server
from ...support.stores.fault_proxy import FaultProxy
from ...support.stores.s3 import proxy, standing_proxy

__all__ = ["aws", "proxy", "s3_server", "standing_proxy"]


class Shelf:
    """A bucket of a team, and the machine that compiles what lies in it."""

    def __init__(self, client: Any, proxy: FaultProxy, folder: Path) -> None:
        self.client, self.proxy, self.folder = client, proxy, folder
        self.bucket = f"bucket-{uuid.uuid4().hex[:12]}"
        client.create_bucket(Bucket=self.bucket)

    def put(self, key: str, content: bytes) -> None:
        """Write an object."""
        self.client.put_object(Bucket=self.bucket, Key=key, Body=content)

    def put_folder(self, prefix: str, folder: Path) -> str:
        """Write the files of a folder; their address."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())
        return self.address(prefix)

    def address(self, key: str) -> str:
        """Where an object or a folder of them is."""
        return f"s3://{self.bucket}/{key}"

    def fetched(self, source: str, *, dry: bool = False, **values: Any) -> StepResult[SourceModel]:
        """What the first step of a compile brings here."""
        result = self.fetch(source, dry=dry, **values)
        assert result is not None
        return result

    def fetch(self, source: str, *, dry: bool = False, **values: Any) -> StepResult[SourceModel] | None:
        """The first step of a compile, None where a look finds nothing; requests are noted from its start."""
        spec: ModelSpec = make_spec({"source": source, "artifacts": str(self.folder / "artifacts"), **values})
        self.proxy.reset(self.proxy.handling)
        stages = StageRunner("m", Path(spec.artifacts), listener=Listener(), force=False, dry=dry)
        try:
            return fetch(stages, spec, parse_reference(spec.source, relative_to=self.folder))
        finally:
            stages.close()

    def requested_keys(self) -> list[str]:
        """What was asked for since the last fetch began: keys, or the word for a listing."""
        return [
            "listing" if "list-type" in request.query else request.path.removeprefix(f"/{self.bucket}/")
            for request in self.proxy.requests
        ]


@pytest.fixture
def shelf(
    proxy: FaultProxy,
    s3_server: str,
    aws: None,  # noqa: ARG001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Shelf]:
    """An empty bucket, with an environment that leads to it."""
    import boto3

    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    monkeypatch.setattr("botocore.retries.quota.RetryQuota.acquire", lambda *_: True)
    monkeypatch.setattr("plansmith.system.aws.bucket._PAUSE_SECONDS", 0)
    monkeypatch.delenv("PLANSMITH_SOURCE_MAX_GB", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.endpoint)
    client = boto3.client("s3", endpoint_url=s3_server)
    yield Shelf(client, proxy, tmp_path)
    client.close()
