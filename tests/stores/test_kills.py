"""A publisher that is killed at any moment: nothing half made can be seen, and the next one sends the rest."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from plansmith.stores.initialize import require_store
from plansmith.stores.layout import catalogue_key
from plansmith.stores.store import open_store

from ..support.faults.packages import TARGET
from ..support.stores.crowds import Publishers, small_release
from ..support.stores.fault_proxy import FaultProxy, Handling, Request, at, cut_after, cut_before, killing
from ..support.stores.publishers import PART_BYTES, Watch
from ..support.stores.releases import MODEL, PackagedRelease
from ..support.stores.s3 import S3

pytestmark = pytest.mark.slow

# Three parts.
BULK_BYTES = 2 * PART_BYTES + 1000

Among = Callable[[Request], bool]


def _is_write(request: Request) -> bool:
    return request.is_write


def _is_part(request: Request) -> bool:
    return "partNumber" in request.query


def _is_completion(request: Request) -> bool:
    return request.method == "POST" and "uploadId" in request.query


def _is_list(request: Request) -> bool:
    return request.method == "PUT" and "/releases/" in request.path


def _is_entry(request: Request) -> bool:
    return request.method == "PUT" and request.path.endswith(catalogue_key(MODEL))


MOMENTS: dict[str, tuple[Among, int, Handling]] = {
    "after the second part": (_is_part, 2, cut_after),
    "before the parts are one object": (_is_completion, 1, cut_before),
    "after the list": (_is_list, 1, cut_after),
    "before the entry": (_is_entry, 1, cut_before),
}
WRITES = 10  # three small files, an upload that is begun, three parts, its completion, the list, the entry
if os.environ.get("PLANSMITH_SOAK_ROUNDS"):
    MOMENTS |= {
        f"{words} write {number}": (_is_write, number, cut)
        for number in range(1, WRITES + 1)
        for words, cut in (("before", cut_before), ("after", cut_after))
    }


@pytest.fixture(autouse=True)
def tiny_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server takes parts that are smaller than 5 MiB."""
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)


@pytest.fixture(scope="session")
def bulk_release(tmp_path_factory: pytest.TempPathFactory) -> PackagedRelease:
    """A release with a file that is sent in parts."""
    return small_release(tmp_path_factory.mktemp("kills") / "repository", 1, bulk_bytes=BULK_BYTES)


@pytest.mark.parametrize(("among", "number", "cut"), MOMENTS.values(), ids=MOMENTS)
def test_killed_publisher_leaves_nothing(
    s3: S3,
    proxy: FaultProxy,
    crowd: Publishers,
    bulk_release: PackagedRelease,
    among: Among,
    number: int,
    cut: Handling,
) -> None:
    """A killed publisher leaves nothing to see, and the next one goes on."""
    store = open_store(s3.place(), Path())
    require_store(store, TARGET)
    place, watch = s3.place(endpoint_url=proxy.endpoint), Watch(store, MODEL)

    def lie_in_wait(processes: list[int]) -> None:
        proxy.handling = at(number, killing(processes[0], cut), among=among)

    assert crowd.publish(place, [bulk_release], lie_in_wait).answers == [None]
    proxy.wait_until_idle()
    watch.look()
    was_entered = any(_is_entry(request) for request in proxy.done)
    assert (list(watch.entries), watch.problems) == ([1] if was_entered else [], [])

    before = _contents(proxy)
    proxy.reset()
    assert crowd.publish(place, [bulk_release]).versions == [1]
    assert before & _contents(proxy) == set(), "what had arrived was sent again"
    watch.look()
    assert (list(watch.entries), watch.problems) == ([1], [])
    assert s3.client.list_multipart_uploads(Bucket=s3.bucket).get("Uploads", []) == []


def _contents(proxy: FaultProxy) -> set[tuple[str, ...]]:
    """The objects and parts whose contents arrived."""
    return {
        (request.path, *request.query.get("partNumber", []))
        for request in proxy.done
        if request.method == "PUT" and "/objects/" in request.path
    }
