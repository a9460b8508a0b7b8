"""What a server does is found out when a store is made, and kept there."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from plansmith.errors import RepositoryError
from plansmith.records.destination import Location
from plansmith.stores import initialize
from plansmith.stores.backend.object_store import UNKNOWN
from plansmith.stores.initialize import probe_again, require_store
from plansmith.stores.layout import MARKER_KEY, TURNS
from plansmith.stores.store import open_store

from ...support.cli.in_process import InProcess
from ...support.stores.crowds import small_release
from ...support.stores.fault_proxy import (
    Answer,
    FaultProxy,
    Forward,
    Handling,
    Request,
    denied,
    ignoring_conditions,
    looking_then_writing,
    passed,
    refusing_conditions,
)
from ...support.stores.s3 import S3

pytestmark = pytest.mark.slow


def answering_conditions(status: int, code: str, request: Request, forward: Forward) -> Answer:
    """The server does not know what a condition is, and has a way of its own to say so."""
    if not request.is_conditional:
        return forward(request)
    return Answer(status, {}, f"<Error><Code>{code}</Code></Error>".encode() if code else b"")


KINDS = {
    "conditional": (passed, (True, True, True)),
    "ignoring": (ignoring_conditions, (False, False, False)),
    "refusing": (refusing_conditions, (False, False, False)),
    "not allowing": (partial(answering_conditions, 405, "MethodNotAllowed"), (False, False, False)),
    "not understanding": (partial(answering_conditions, 400, "InvalidArgument"), (False, False, False)),
    "refusing without a word": (partial(answering_conditions, 405, ""), (False, False, False)),
    "racy": (looking_then_writing, (True, True, False)),
}


@pytest.mark.parametrize(("handling", "expected"), KINDS.values(), ids=KINDS)
def test_server_abilities_seen(
    s3: S3, proxy: FaultProxy, handling: Handling, expected: tuple[bool, bool, bool]
) -> None:
    """It is seen what a server does."""
    proxy.handling = handling
    store = open_store(s3.place(endpoint_url=proxy.endpoint), Path())
    assert store.objects.abilities == UNKNOWN
    abilities = require_store(store, "local-cpu").abilities
    assert (abilities.create_once, abilities.swap, abilities.safe_in_race) == expected
    assert bool(abilities.shortcoming) is not all(expected)
    assert abilities.probed
    assert store.objects.abilities == abilities
    assert s3.keys() == [f"team/models/{MARKER_KEY}"]


@pytest.mark.parametrize(("most", "is_safe"), [(3, True), (12, False)])
def test_erroring_writers_prove_nothing(s3: S3, proxy: FaultProxy, most: int, is_safe: bool) -> None:
    """Writers that got an error won nothing and prove nothing."""
    count = itertools.count()

    def sometimes_denied(request: Request, forward: Forward) -> Answer:
        is_one = "/race-" in request.path and request.method == "PUT" and next(count) % 16 < most
        return denied(request, forward) if is_one else forward(request)

    proxy.handling = sometimes_denied
    abilities = require_store(open_store(s3.place(endpoint_url=proxy.endpoint), Path()), "local-cpu").abilities
    assert (abilities.create_once, abilities.swap, abilities.safe_in_race) == (True, True, is_safe)


def test_dead_store_maker_delays_briefly(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies while it makes a store holds others up for a short while."""
    store = open_store(s3.place(), Path())
    store.objects.put(f"{TURNS}founding/ticket-000000000001-dead", b"dead, process 1\n")
    monkeypatch.setattr(initialize, "_FOUNDING_SECONDS", 1.5)
    monkeypatch.setattr(initialize, "_FOUNDING_MARGIN_SECONDS", 0.2)
    assert require_store(store, "local-cpu").abilities.is_conditional
    assert s3.keys() == [f"team/models/{MARKER_KEY}"]


def test_a_server_is_asked_once(s3: S3, proxy: FaultProxy) -> None:
    place = s3.place(endpoint_url=proxy.endpoint)
    proxy.handling = refusing_conditions
    result = require_store(open_store(place, Path()), "local-cpu")
    proxy.reset(refusing_conditions)
    store = open_store(place, Path())
    assert require_store(store, "local-cpu") == result
    assert store.objects.abilities == result.abilities
    assert [request.method for request in proxy.requests] == ["GET"]


def test_person_may_repeat_probe(s3: S3, proxy: FaultProxy) -> None:
    """A person may have the server asked again."""
    before = require_store(open_store(s3.place(), Path()), "local-cpu")
    place = s3.place(endpoint_url=proxy.endpoint)
    proxy.handling = refusing_conditions
    store = open_store(place, Path())
    after = probe_again(store)
    assert (before.abilities.is_conditional, after.abilities.is_conditional) == (True, False)
    assert open_store(place, Path()).marker() == after
    assert store.objects.abilities == after.abilities
    assert s3.keys() == [f"team/models/{MARKER_KEY}"]


def test_unmade_store_not_asked_again(s3: S3) -> None:
    """What is no store yet is not asked again."""
    with pytest.raises(RepositoryError, match="is no store yet") as refused:
        probe_again(open_store(s3.place(), Path()))
    assert refused.value.remedy
    assert s3.keys() == []


def test_one_maker_probes_for_all(s3: S3, proxy: FaultProxy) -> None:
    """Of several who make a store, one asks and all go by it."""
    proxy.handling = looking_then_writing
    stores = [open_store(s3.place(endpoint_url=proxy.endpoint), Path()) for _ in range(4)]
    with ThreadPoolExecutor(len(stores)) as threads:
        markers = list(threads.map(lambda store: require_store(store, "local-cpu"), stores))
    assert markers == [markers[0]] * len(stores)
    assert {store.objects.abilities for store in stores} == {markers[0].abilities}
    probes = {request.path.split("/")[5] for request in proxy.requests if "/probe/" in request.path}
    assert len(probes) == 1
    assert s3.keys() == [f"team/models/{MARKER_KEY}"]


def test_failed_probe_makes_no_store(s3: S3, proxy: FaultProxy) -> None:
    """A probe that fails leaves nothing and makes no store."""
    proxy.handling = lambda request, forward: (
        denied if request.method == "PUT" and request.path.endswith("/swapped") else passed
    )(request, forward)
    with pytest.raises(RepositoryError, match="PutObject"):
        require_store(open_store(s3.place(endpoint_url=proxy.endpoint), Path()), "local-cpu")
    assert s3.keys() == []


def test_copied_folder_store_not_trusted(s3: S3, tmp_path: Path) -> None:
    """A store that was copied from a folder is not trusted."""
    folder = open_store(Location(to=str(tmp_path / "store")), Path())
    require_store(folder, "local-cpu")
    copied = open_store(s3.place(), Path())
    copied.objects.put(MARKER_KEY, (tmp_path / "store" / MARKER_KEY).read_bytes())
    with pytest.raises(RepositoryError, match="was copied from a folder") as refused:
        copied.change("m", lambda old: old.model_copy(update={"versions": ()}))
    assert "plansmith store --probe" in refused.value.remedy
    probe_again(copied)
    assert copied.change("m", lambda old: old).versions == ()


def test_foreign_objects_left_alone(s3: S3) -> None:
    """What another program put there is left alone."""
    store = open_store(s3.place(), Path())
    store.objects.put("weights.bin", b"theirs")
    with pytest.raises(RepositoryError, match=r"not plansmith's: weights\.bin"):
        require_store(store, "local-cpu")
    assert s3.keys() == ["team/models/weights.bin"]


def test_publisher_told_server_gaps(
    s3: S3,
    proxy: FaultProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A publisher is told what a server does not do."""
    release = small_release(tmp_path / "repository", 1)
    run = InProcess(tmp_path, monkeypatch, capfd)
    arguments = ("publish", release.model, "--repository", "repository", "--endpoint-url")
    proxy.handling = refusing_conditions
    answer = run(*arguments, proxy.endpoint, f"s3://{s3.bucket}/refusing")
    assert "publishers wait for each other, one at a time" in answer.stdout
    assert answer.status == 0
    assert "wait for each other" not in run(*arguments, s3.endpoint, f"s3://{s3.bucket}/conditional").stdout
