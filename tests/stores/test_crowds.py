"""Sixteen processes that publish versions of one model at the same moment, on servers of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from plansmith.stores.claiming import require_store
from plansmith.stores.layout import TURNS
from plansmith.stores.opening import open_store

from .conftest import S3
from .crowds import Publishers, publishers
from .fault_proxy import (
    FaultProxy,
    Handling,
    ignoring_conditions,
    looking_then_writing,
    passed,
    refusing_conditions,
)
from .releases import TARGET, make_release

KINDS = {
    "keeps conditions": passed,
    "ignores conditions": ignoring_conditions,
    "refuses conditions": refusing_conditions,
    "looks and then writes": looking_then_writing,
}


@pytest.fixture(scope="module")
def crowd() -> Iterator[Publishers]:
    with publishers() as crowd:
        yield crowd


@pytest.fixture
def proxy(s3: S3) -> Iterator[FaultProxy]:
    with FaultProxy(int(s3.endpoint.rpartition(":")[2])).running() as proxy:
        yield proxy


@pytest.mark.parametrize("handling", KINDS.values(), ids=KINDS)
def test_every_publisher_gets_a_number_of_its_own(
    s3: S3, proxy: FaultProxy, crowd: Publishers, tmp_path: Path, handling: Handling
) -> None:
    proxy.handling = handling
    place = s3.place(endpoint_url=proxy.endpoint)
    require_store(open_store(place, Path()), TARGET)
    proxy.reset(handling)
    releases = [make_release(tmp_path / str(answer), answer) for answer in range(16)]
    import time

    t = time.monotonic()
    outcome = crowd.publish(place, releases)
    print(outcome.told[0], outcome.reader)
    print(time.monotonic() - t, len(proxy.requests), outcome.reader["reads"])
    assert outcome.versions == list(range(1, 17))
    assert outcome.reader["problems"] == []
    assert list(outcome.reader["versions"]) == [str(number) for number in outcome.versions]
    assert list(open_store(place, Path()).objects.below(TURNS)) == []
