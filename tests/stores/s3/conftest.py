"""What the tests of S3 share: a server that is not always well, and no pauses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from plansmith.stores.s3 import S3Objects

from ..conftest import S3
from ..fault_proxy import FaultProxy


@pytest.fixture
def proxy(s3: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """What stands between the client and the server, which nobody waits for before he tries again."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    monkeypatch.setattr("plansmith.stores.s3.bucket._PAUSE_SECONDS", 0)
    with FaultProxy(int(s3.endpoint.rpartition(":")[2])).running() as proxy:
        yield proxy


@pytest.fixture
def through(s3: S3, proxy: FaultProxy) -> S3Objects:
    """A store that is reached through the proxy."""
    return S3Objects(s3.place(endpoint_url=proxy.endpoint), Path())
