"""What the tests of S3 share: a server that is not always well, and no pauses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plansmith.records.destination import Location
from plansmith.stores.backend.s3 import S3Objects
from plansmith.system.aws.bucket import connect

from ....support.servers.aws_server import ENVIRONMENT
from ....support.stores.fault_proxy import FaultProxy
from ....support.stores.s3 import S3


@pytest.fixture(scope="session")
def running_proxy(s3_server: str) -> Iterator[FaultProxy]:
    with FaultProxy(int(s3_server.rpartition(":")[2])).running() as proxy:
        yield proxy


@pytest.fixture
def proxy(running_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> FaultProxy:
    """What stands between the client and the server, which nobody waits for before he tries again."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    monkeypatch.setattr("botocore.retries.quota.RetryQuota.acquire", lambda *_: True)
    monkeypatch.setattr("plansmith.system.aws.bucket._PAUSE_SECONDS", 0)
    running_proxy.reset()
    return running_proxy


@pytest.fixture(scope="session")
def shared_client(running_proxy: FaultProxy) -> Iterator[Any]:
    """A client of the proxy's, as it takes a while to make one."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        client = connect(Location(to="s3://any", endpoint_url=running_proxy.endpoint), Path())
    yield client
    client.close()


@pytest.fixture
def through(s3: S3, proxy: FaultProxy, shared_client: Any) -> S3Objects:
    """A store that is reached through the proxy."""
    objects = S3Objects(s3.place(endpoint_url=proxy.endpoint), Path())
    objects.bucket._clients[True] = shared_client
    return objects
