"""An S3 server on 127.0.0.1, an empty bucket on it for each test, and a proxy before it that can fail."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from plansmith.records.destination import Location
from plansmith.stores.backend.object_store import Abilities
from plansmith.stores.backend.s3 import probe
from plansmith.system.aws.bucket import Bucket, connect

from ..servers.aws_server import ENVIRONMENT
from .fault_proxy import FaultProxy


@dataclass(frozen=True)
class S3:
    """An S3 server with an empty bucket."""

    endpoint: str
    bucket: str
    client: Any
    """A plain client of the server, to look at what is there."""

    def place(self, prefix: str = "team/models", **fields: Any) -> Location:
        """A prefix of the bucket."""
        return Location.model_validate({"to": f"s3://{self.bucket}/{prefix}", "endpoint_url": self.endpoint, **fields})

    def keys(self) -> list[str]:
        """All keys of the bucket, in full."""
        return [item["Key"] for item in self.client.list_objects_v2(Bucket=self.bucket).get("Contents", ())]


@pytest.fixture(scope="session")
def plain_client(s3_server: str) -> Iterator[Any]:
    """A client of the server that is shared, as it takes a while to make one."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        client = connect(Location(to="s3://any", endpoint_url=s3_server, region="us-east-1"), Path())
    yield client
    client.close()


@pytest.fixture(scope="session")
def server_abilities() -> dict[str, Abilities]:
    """What was seen of servers that stay the same for all tests, by address."""
    return {}


@pytest.fixture
def s3(
    s3_server: str,
    plain_client: Any,
    server_abilities: dict[str, Abilities],
    aws: None,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
) -> S3:
    """An empty bucket, on a server that is asked once what it does, and not for each store anew."""

    def probe_once(bucket: Bucket) -> Abilities:
        server = bucket.client.meta.endpoint_url
        abilities = server_abilities.get(server) or probe(bucket)
        if server == s3_server:
            server_abilities[server] = abilities
        return abilities

    monkeypatch.setattr("plansmith.stores.backend.s3.probe", probe_once)
    instance = S3(s3_server, f"bucket-{uuid.uuid4().hex[:12]}", plain_client)
    instance.client.create_bucket(Bucket=instance.bucket)
    return instance


@pytest.fixture(scope="session")
def standing_proxy(s3_server: str) -> Iterator[FaultProxy]:
    """What stands before the server."""
    with FaultProxy(int(s3_server.rpartition(":")[2])).running() as proxy:
        yield proxy


@pytest.fixture
def proxy(standing_proxy: FaultProxy) -> FaultProxy:
    """What stands before the server, and passes everything on until it is told otherwise."""
    standing_proxy.wait_until_idle()
    standing_proxy.reset()
    return standing_proxy
