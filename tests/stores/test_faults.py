"""Publications over bad connections: whole or not there, tried again and not for ever, and done once."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from plansmith.errors import PlansmithError
from plansmith.records.destination import Publication
from plansmith.stores.initialize import require_store
from plansmith.stores.layout import catalogue_key
from plansmith.stores.publication import publish_release
from plansmith.stores.store import Store, open_store
from plansmith.system.aws.bucket import ATTEMPTS
from plansmith.system.digest import Digester

from ..support.faults.packages import TARGET
from ..support.servers.aws_server import KEY_ID, SECRET
from ..support.stores.crowds import small_release
from ..support.stores.fault_proxy import (
    FaultProxy,
    Handling,
    Request,
    at,
    cut_after,
    cut_before,
    failed,
    looking_then_writing,
    passed,
    slowed,
    sometimes,
    truncated,
)
from ..support.stores.publishers import Watch
from ..support.stores.releases import MODEL, PackagedRelease
from ..support.stores.s3 import S3

pytestmark = pytest.mark.slow

PUBLICATIONS = int(os.environ.get("PLANSMITH_SOAK_ROUNDS") or 10)
SEED = int(os.environ.get("PLANSMITH_SOAK_SEED") or random.randrange(10**6))
CHANCE = 0.15


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What botocore waits before it sends a request again, a fiftieth of it."""
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda seconds: time.sleep(seconds / 50)))


def made_store(s3: S3, proxy: FaultProxy, kind: Handling = passed) -> Store:
    """A store on a server of some kind, behind the proxy, whose server was asked what it does."""
    proxy.handling = kind
    behind = s3.place(endpoint_url=proxy.endpoint)
    require_store(open_store(s3.place() if kind is passed else behind, Path()), TARGET)
    return open_store(behind, Path())


@pytest.fixture
def store(s3: S3, proxy: FaultProxy) -> Store:
    """A store behind the proxy, on a server that keeps conditions."""
    return made_store(s3, proxy)


def publish(store: Store, made: PackagedRelease) -> Publication:
    digester = Digester(made.folder.parent / "no-memo", read_only=True)
    return publish_release(store, made.folder, made.manifest, digester)


@pytest.mark.parametrize(
    ("kind", "publications"),
    [(passed, PUBLICATIONS), (looking_then_writing, PUBLICATIONS // 3)],
    ids=["keeps conditions", "looks and then writes"],
)
def test_visible_versions_always_whole(
    s3: S3, proxy: FaultProxy, tmp_path: Path, kind: Handling, publications: int
) -> None:
    """Every version that can be seen is whole, whatever the network does."""
    store = made_store(s3, proxy, kind)
    watch = Watch(open_store(s3.place(), Path()), MODEL)
    proxy.handling = sometimes(CHANCE, SEED, kind)
    for number in range(1, publications + 1):
        release = small_release(tmp_path / str(number), number)
        attempts = 0
        while not isinstance(published := publish_or_fail(store, release), Publication):
            attempts += 1
            assert (published.transient, attempts < 10, SEED) == (True, True, SEED), published
            watch.look()
            assert (watch.problems, SEED) == ([], SEED)
        watch.look()
        assert (watch.problems, SEED) == ([], SEED)
        assert (published.version, list(watch.entries), SEED) == (number, list(range(1, number + 1)), SEED)


def publish_or_fail(store: Store, made: PackagedRelease) -> Publication | PlansmithError:
    try:
        return publish(store, made)
    except PlansmithError as error:
        return error


@pytest.mark.parametrize("fault", [cut_before, cut_after, failed, slowed, truncated])
def test_hopeless_server_given_up(store: Store, proxy: FaultProxy, tmp_path: Path, fault: Handling) -> None:
    """A server that never gets better is given up."""
    release = small_release(tmp_path / "one", 1)
    proxy.reset(fault)
    with pytest.raises(PlansmithError) as refused:
        publish(store, release)
    assert len(proxy.requests) == ATTEMPTS
    assert refused.value.exit_code in {7, 9}
    assert refused.value.remedy
    assert not any(secret in str(refused.value) for secret in (SECRET, KEY_ID))


@pytest.mark.parametrize("kind", [passed, looking_then_writing], ids=["keeps conditions", "looks and then writes"])
def test_lost_answer_gives_one_number(s3: S3, proxy: FaultProxy, tmp_path: Path, kind: Handling) -> None:
    """A version whose answer got lost is given one number."""
    store = made_store(s3, proxy, kind)
    for number in (1, 2):
        proxy.reset(
            at(1, lambda request, forward: cut_after(request, lambda inner: kind(inner, forward)), kind, _is_entry)
        )
        assert publish(store, small_release(tmp_path / str(number), number)).version == number
        assert sum(map(_is_entry, proxy.requests)) == 2
    assert [version.version for version in store.catalogue(MODEL).versions] == [1, 2]


def test_lost_answer_rolls_back_once(store: Store, proxy: FaultProxy, tmp_path: Path) -> None:
    """A rollback whose answer got lost goes back once."""
    for number in (1, 2, 3):
        publish(store, small_release(tmp_path / str(number), number))
    proxy.reset(at(1, cut_after, among=_is_entry))
    store.roll_back(MODEL)
    assert sum(map(_is_entry, proxy.requests)) == 2
    assert store.catalogue(MODEL).aliases["current"].line == (1, 2)


def _is_entry(request: Request) -> bool:
    """Whether it writes a catalogue."""
    return request.method == "PUT" and request.path.endswith(catalogue_key(MODEL))
