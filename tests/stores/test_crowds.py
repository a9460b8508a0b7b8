"""Sixteen processes that publish versions of one model at the same moment, on servers of every kind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plansmith.stores.initialize import require_store
from plansmith.stores.layout import TURNS
from plansmith.stores.store import open_store

from ..support.faults.packages import TARGET
from ..support.stores.crowds import Publishers, small_release
from ..support.stores.fault_proxy import (
    FaultProxy,
    Handling,
    ignoring_conditions,
    looking_then_writing,
    passed,
    refusing_conditions,
)
from ..support.stores.s3 import S3

pytestmark = pytest.mark.slow

KINDS = {
    "keeps conditions": (passed, 16),
    "ignores conditions": (ignoring_conditions, 2),
    "refuses conditions": (refusing_conditions, 2),
    "looks and then writes": (looking_then_writing, 8),
}
ROUNDS = int(os.environ.get("PLANSMITH_SOAK_ROUNDS") or 0) // 40


@pytest.mark.parametrize(("handling", "processes"), KINDS.values(), ids=KINDS)
def test_publishers_get_own_numbers(
    s3: S3, proxy: FaultProxy, crowd: Publishers, tmp_path: Path, handling: Handling, processes: int
) -> None:
    """Every publisher gets a number of its own."""
    proxy.handling = handling
    for attempt in range(ROUNDS or 1):
        prefix = f"round-{attempt}"
        place = s3.place(prefix, endpoint_url=proxy.endpoint)
        require_store(open_store(s3.place(prefix) if handling is passed else place, Path()), TARGET)
        count = 16 if ROUNDS else processes
        releases = [small_release(tmp_path / f"{attempt}-{answer}", answer) for answer in range(count)]
        outcome = crowd.publish(place, releases)
        assert outcome.versions == list(range(1, count + 1))
        assert outcome.reader["problems"] == []
        assert [int(number) for number in outcome.reader["versions"]] == outcome.versions
        assert list(open_store(place, Path()).objects.below(TURNS)) == []


@pytest.mark.parametrize("handling", [passed, looking_then_writing], ids=["keeps conditions", "looks and then writes"])
def test_publishers_make_missing_store(
    s3: S3, proxy: FaultProxy, crowd: Publishers, tmp_path: Path, handling: Handling
) -> None:
    """Publishers who find no store make one."""
    proxy.handling = handling
    place = s3.place(endpoint_url=proxy.endpoint)
    outcome = crowd.publish(place, [small_release(tmp_path / str(answer), answer) for answer in range(3)])
    assert outcome.versions == [1, 2, 3]
    assert outcome.reader["problems"] == []
    marker = open_store(place, Path()).marker()
    assert marker is not None
    assert marker.abilities.safe_in_race == (handling is passed)
