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
    monkeypatch.setattr("plansmith.stores.backend.s3._LONGEST_PAUSE_SECONDS", 0)


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
    document = objects.read(KEY)
    assert document is not None
    return document.content


def test_unanswered_creation_recognised(through: S3Objects, proxy: FaultProxy) -> None:
    """A document whose creation was answered to nobody is one's own."""
    proxy.handling = first_write(cut_after)
    tag = through.create(KEY, b"mine")
    assert len([request for request in proxy.requests if request.is_write]) == 2
    document = through.read(KEY)
    assert document is not None
    assert (document.content, document.tag) == (b"mine", tag)


def test_unanswered_swap_recognised(through: S3Objects, proxy: FaultProxy) -> None:
    """A swap that was answered to nobody is one's own."""
    before = through.create(KEY, b"before")
    proxy.reset(first_write(cut_after))
    tag = through.swap(KEY, b"mine", before)
    assert through.swap(KEY, b"next", tag)
    assert content(through) == b"next"


def test_loser_told_despite_lost_answer(s3: S3, through: S3Objects, proxy: FaultProxy) -> None:
    """The loser is told, though the answer got lost."""
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


def test_simultaneous_writer_retries(through: S3Objects, proxy: FaultProxy) -> None:
    """A writer that writes at the same moment as another tries again."""
    proxy.handling = first_write(conflict)
    tag = through.create(KEY, b"first")
    proxy.reset(first_write(conflict))
    through.swap(KEY, b"second", tag)
    assert content(through) == b"second"


def test_contested_document_given_up(through: S3Objects, proxy: FaultProxy) -> None:
    """A document that others write all the time is given up."""
    tag = through.create(KEY, b"first")
    proxy.reset(lambda request, forward: conflict() if request.is_write else forward(request))
    with pytest.raises(RepositoryError, match="written by others all the time") as caught:
        through.swap(KEY, b"second", tag)
    assert caught.value.transient
    assert caught.value.remedy
    assert len([request for request in proxy.requests if request.is_write]) == 8


def test_doubtful_server_asked_again(through: S3Objects, proxy: FaultProxy) -> None:
    """A server that was thought to keep conditions is to be asked again."""
    proxy.handling = refusing_conditions
    with pytest.raises(RepositoryError, match="does not offer conditional writes") as caught:
        through.create(KEY, b"mine")
    assert "--probe" in caught.value.remedy


def test_conditionless_server_sent_none(through: S3Objects, proxy: FaultProxy) -> None:
    """A server that keeps no conditions is sent none."""
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
