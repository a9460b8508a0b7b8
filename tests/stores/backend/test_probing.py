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
from plansmith.stores.open import open_store

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


@pytest.mark.parametrize(("handling", "found"), KINDS.values(), ids=KINDS)
def test_it_is_seen_what_a_server_does(
    s3: S3, proxy: FaultProxy, handling: Handling, found: tuple[bool, bool, bool]
) -> None:
    proxy.handling = handling
    store = open_store(s3.place(endpoint_url=proxy.endpoint), Path())
    assert store.objects.abilities == UNKNOWN
    abilities = require_store(store, "local-cpu").abilities
    assert (abilities.create_once, abilities.swap, abilities.safe_in_race) == found
    assert bool(abilities.shortcoming) is not all(found)
    assert abilities.probed
    assert store.objects.abilities == abilities
    assert s3.keys() == [f"team/models/{MARKER_KEY}"]


@pytest.mark.parametrize(("most", "is_safe"), [(3, True), (12, False)])
def test_writers_that_got_an_error_won_nothing_and_prove_nothing(
    s3: S3, proxy: FaultProxy, most: int, is_safe: bool
) -> None:
    count = itertools.count()

    def sometimes_denied(request: Request, forward: Forward) -> Answer:
        is_one = "/race-" in request.path and request.method == "PUT" and next(count) % 16 < most
        return denied(request, forward) if is_one else forward(request)

    proxy.handling = sometimes_denied
    abilities = require_store(open_store(s3.place(endpoint_url=proxy.endpoint), Path()), "local-cpu").abilities
    assert (abilities.create_once, abilities.swap, abilities.safe_in_race) == (True, True, is_safe)


def test_who_dies_while_it_makes_a_store_holds_others_up_for_a_short_while(
    s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(s3.place(), Path())
    store.objects.put(f"{TURNS}founding/ticket-000000000001-dead", b"dead, process 1\n")
    monkeypatch.setattr(initialize, "_FOUNDING_SECONDS", 1.5)
    monkeypatch.setattr(initialize, "_FOUNDING_MARGIN_SECONDS", 0.2)
    assert require_store(store, "local-cpu").abilities.is_conditional
    assert s3.keys() == [f"team/models/{MARKER_KEY}"]


def test_a_server_is_asked_once(s3: S3, proxy: FaultProxy) -> None:
    place = s3.place(endpoint_url=proxy.endpoint)
    proxy.handling = refusing_conditions
    found = require_store(open_store(place, Path()), "local-cpu")
    proxy.reset(refusing_conditions)
    store = open_store(place, Path())
    assert require_store(store, "local-cpu") == found
    assert store.objects.abilities == found.abilities
    assert [request.method for request in proxy.requests] == ["GET"]


def test_a_person_may_have_it_asked_again(s3: S3, proxy: FaultProxy) -> None:
    before = require_store(open_store(s3.place(), Path()), "local-cpu")
    place = s3.place(endpoint_url=proxy.endpoint)
    proxy.handling = refusing_conditions
    store = open_store(place, Path())
    after = probe_again(store)
    assert (before.abilities.is_conditional, after.abilities.is_conditional) == (True, False)
    assert open_store(place, Path()).marker() == after
    assert store.objects.abilities == after.abilities
    assert s3.keys() == [f"team/models/{MARKER_KEY}"]


def test_what_is_no_store_yet_is_not_asked_again(s3: S3) -> None:
    with pytest.raises(RepositoryError, match="is no store yet") as refused:
        probe_again(open_store(s3.place(), Path()))
    assert refused.value.remedy
    assert s3.keys() == []


def test_of_several_who_make_a_store_one_asks_and_all_go_by_it(s3: S3, proxy: FaultProxy) -> None:
    proxy.handling = looking_then_writing
    stores = [open_store(s3.place(endpoint_url=proxy.endpoint), Path()) for _ in range(4)]
    with ThreadPoolExecutor(len(stores)) as threads:
        markers = list(threads.map(lambda store: require_store(store, "local-cpu"), stores))
    assert markers == [markers[0]] * len(stores)
    assert {store.objects.abilities for store in stores} == {markers[0].abilities}
    probes = {request.path.split("/")[5] for request in proxy.requests if "/probe/" in request.path}
    assert len(probes) == 1
    assert s3.keys() == [f"team/models/{MARKER_KEY}"]


def test_a_probe_that_fails_leaves_nothing_and_makes_no_store(s3: S3, proxy: FaultProxy) -> None:
    proxy.handling = lambda request, forward: (
        denied if request.method == "PUT" and request.path.endswith("/swapped") else passed
    )(request, forward)
    with pytest.raises(RepositoryError, match="PutObject"):
        require_store(open_store(s3.place(endpoint_url=proxy.endpoint), Path()), "local-cpu")
    assert s3.keys() == []


def test_a_store_that_was_copied_from_a_folder_is_not_trusted(s3: S3, tmp_path: Path) -> None:
    folder = open_store(Location(to=str(tmp_path / "store")), Path())
    require_store(folder, "local-cpu")
    copied = open_store(s3.place(), Path())
    copied.objects.put(MARKER_KEY, (tmp_path / "store" / MARKER_KEY).read_bytes())
    with pytest.raises(RepositoryError, match="was copied from a folder") as refused:
        copied.change("m", lambda old: old.model_copy(update={"versions": ()}))
    assert "plansmith store --probe" in refused.value.remedy
    probe_again(copied)
    assert copied.change("m", lambda old: old).versions == ()


def test_what_another_program_put_there_is_left_alone(s3: S3) -> None:
    store = open_store(s3.place(), Path())
    store.objects.put("weights.bin", b"theirs")
    with pytest.raises(RepositoryError, match=r"not plansmith's: weights\.bin"):
        require_store(store, "local-cpu")
    assert s3.keys() == ["team/models/weights.bin"]


def test_whoever_publishes_is_told_what_a_server_does_not_do(
    s3: S3,
    proxy: FaultProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    made = small_release(tmp_path / "repository", 1)
    run = InProcess(tmp_path, monkeypatch, capfd)
    words = ("publish", made.model, "--repository", "repository", "--endpoint-url")
    proxy.handling = refusing_conditions
    told = run(*words, proxy.endpoint, f"s3://{s3.bucket}/refusing")
    assert "publishers wait for each other, one at a time" in told.stdout
    assert told.status == 0
    assert "wait for each other" not in run(*words, s3.endpoint, f"s3://{s3.bucket}/conditional").stdout
