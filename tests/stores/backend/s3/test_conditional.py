"""Documents are written only if they are as the writer believes, also where answers get lost on the way."""

from __future__ import annotations

import pytest

from plansmith.errors import RepositoryError
from plansmith.stores.backend.object_store import UNKNOWN, Abilities, Changed, KeyTaken
from plansmith.stores.backend.s3 import S3Objects

from ....support.stores.fault_proxy import (
    Answer,
    FaultProxy,
    Forward,
    Handling,
    Request,
    cut_after,
    refusing_conditions,
)
from ....support.stores.s3 import S3

pytestmark = pytest.mark.slow

KEY = "models/a.json"
SAFE = Abilities(create_once=True, swap=True, safe_in_race=True, checksums=False, probed="2026-11-22T10:00:00Z")


@pytest.fixture(autouse=True)
def conditional(through: S3Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server was seen to keep conditions, and nobody waits."""
    through.abilities = SAFE
    monkeypatch.setattr("plansmith.stores.backend.s3.conditional_writes._LONGEST_PAUSE_SECONDS", 0)


def first_write(then: Handling) -> Handling:
    """The first write is handled otherwise than what follows."""
    met: list[Request] = []

    def handled(request: Request, forward: Forward) -> Answer:
        if request.is_write and not met:
            met.append(request)
            return then(request, forward)
        return forward(request)

    return handled


def conflict(*_: object) -> Answer:
    """Another writes at the same moment."""
    return Answer(409, {}, b"<Error><Code>ConditionalRequestConflict</Code></Error>")


def content(objects: S3Objects) -> bytes:
    found = objects.read(KEY)
    assert found is not None
    return found.content


def test_a_document_whose_creation_was_answered_to_nobody_is_ones_own(through: S3Objects, proxy: FaultProxy) -> None:
    proxy.handling = first_write(cut_after)
    tag = through.create(KEY, b"mine")
    assert len([request for request in proxy.requests if request.is_write]) == 2
    found = through.read(KEY)
    assert found is not None
    assert (found.content, found.tag) == (b"mine", tag)


def test_a_swap_that_was_answered_to_nobody_is_ones_own(through: S3Objects, proxy: FaultProxy) -> None:
    before = through.create(KEY, b"before")
    proxy.reset(first_write(cut_after))
    tag = through.swap(KEY, b"mine", before)
    assert through.swap(KEY, b"next", tag)
    assert content(through) == b"next"


def test_who_lost_is_told_though_the_answer_got_lost(s3: S3, through: S3Objects, proxy: FaultProxy) -> None:
    before = through.create(KEY, b"before")

    def another_is_quicker(request: Request, forward: Forward) -> Answer:
        s3.client.put_object(Bucket=s3.bucket, Key=f"team/models/{KEY}", Body=b"another's")
        return cut_after(request, forward)

    proxy.reset(first_write(another_is_quicker))
    with pytest.raises(Changed):
        through.swap(KEY, b"mine", before)
    with pytest.raises(KeyTaken):
        through.create(KEY, b"mine")
    assert content(through) == b"another's"


def test_whoever_writes_at_the_same_moment_as_another_tries_again(through: S3Objects, proxy: FaultProxy) -> None:
    proxy.handling = first_write(conflict)
    tag = through.create(KEY, b"first")
    proxy.reset(first_write(conflict))
    through.swap(KEY, b"second", tag)
    assert content(through) == b"second"


def test_a_document_that_others_write_all_the_time_is_given_up(through: S3Objects, proxy: FaultProxy) -> None:
    tag = through.create(KEY, b"first")
    proxy.reset(lambda request, forward: conflict() if request.is_write else forward(request))
    with pytest.raises(RepositoryError, match="written by others all the time") as caught:
        through.swap(KEY, b"second", tag)
    assert caught.value.transient
    assert caught.value.remedy
    assert len([request for request in proxy.requests if request.is_write]) == 8


def test_a_server_that_was_thought_to_keep_conditions_is_to_be_asked_again(
    through: S3Objects, proxy: FaultProxy
) -> None:
    proxy.handling = refusing_conditions
    with pytest.raises(RepositoryError, match="does not offer conditional writes") as caught:
        through.create(KEY, b"mine")
    assert "--probe" in caught.value.remedy


def test_a_server_that_keeps_no_conditions_is_told_none(through: S3Objects, proxy: FaultProxy) -> None:
    through.abilities = UNKNOWN
    proxy.handling = refusing_conditions
    tag = through.create(KEY, b"first")
    with pytest.raises(KeyTaken):
        through.create(KEY, b"second")
    with pytest.raises(Changed):
        through.swap(KEY, b"second", "another")
    through.swap(KEY, b"second", tag)
    assert content(through) == b"second"
    assert not [request for request in proxy.requests if request.is_conditional]
