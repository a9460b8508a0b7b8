"""Clients that are slow, silent, too many or wasteful: a real server ends their connections, and answers the others."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from plansmith.config.service_triggers import Limits
from plansmith.triggers.receiver.server import MOST_CONNECTIONS, ReceiverServer, bind

from ...support.deliveries.hostile import NONE, Hostile, chunked, written
from ...support.deliveries.receiving import HOOK, Receiver, signed_request
from ...support.deliveries.recorded import Sent
from ...support.deliveries.sending import ask, send
from ...support.waiting import soon

pytestmark = pytest.mark.slow

HEAD_SECONDS, BODY_SECONDS = 2.0, 2.0
"""How long a client is waited for; long enough for one on a busy machine."""

PATIENT = Limits(head_seconds=3600, body_seconds=3600)


class Listening:
    """A receiver in this process, at a port."""

    def __init__(self, receiver: Receiver, port: int) -> None:
        self.receiver, self.port = receiver, port

    def answers(self, *pieces: bytes, pause_seconds: float = 0, endless: bool = False) -> set[int]:
        """All that is answered until the connection ends, which is waited for in vain where it is left open."""
        return asyncio.run(send(self.port, Hostile(pieces, frozenset(), pause_seconds, endless)))

    def is_well(self) -> bool:
        """Whether it takes a right delivery; once more where this process was too slow to begin it in time."""
        return soon(lambda: asyncio.run(ask(self.port, _request_bytes(signed_request()))), 202) == 202

    def dropped(self, reason: str) -> float:
        return self.receiver.figure("plansmith_connections_dropped_total", reason=reason) or 0


@pytest.fixture
def listening() -> Iterator[Listening]:
    """A receiver that waits for no client for long."""
    receiver = Receiver(per_minute=10**6)
    limits = Limits(head_seconds=HEAD_SECONDS, body_seconds=BODY_SECONDS)
    with bind("127.0.0.1", 0) as at, ReceiverServer(receiver.app, at, limits=limits, metrics=receiver.metrics):
        yield Listening(receiver, at.getsockname()[1])


def _patient(receiver: Receiver, at: socket.socket) -> ReceiverServer:
    """One that ends no connection for being slow: whoever is kept out by others is kept out for good."""
    return ReceiverServer(receiver.app, at, limits=PATIENT, metrics=receiver.metrics)


def _request_bytes(sent: Sent, path: str = HOOK) -> bytes:
    return written(path, sent.headers.items(), sent.body)


def _kept_open(sent: Sent) -> bytes:
    return _request_bytes(sent).replace(b"Connection: close\r\n", b"")


def _send_for_ever(client: socket.socket, data: bytes) -> None:
    while True:
        client.sendall(data)


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param((b"",), id="silence"),
        pytest.param((b"POST /hooks/ci HTTP/1.1\r\n", b"a: b\r\n"), id="a header now and then"),
        pytest.param((b"P", b"O"), id="letter by letter"),
    ],
)
def test_late_request_ends_connection(pieces: tuple[bytes, ...], listening: Listening) -> None:
    """A request that does not begin in time ends its connection."""
    statuses = listening.answers(*pieces, pause_seconds=0.05, endless=pieces[0] != b"")
    assert statuses <= {NONE, 400}
    assert listening.dropped("slow") == 1
    assert listening.is_well()


def test_idle_kept_connection_ends(listening: Listening) -> None:
    """A connection that is kept open ends as soon when the next request does not begin."""
    statuses = listening.answers(_kept_open(signed_request()), b"a: b\r\n", pause_seconds=0.05, endless=True)
    assert statuses <= {202, 400}
    assert 202 in statuses


def test_connection_serves_many_requests(listening: Listening) -> None:
    """One connection serves as many requests as come in time."""
    pieces = [_kept_open(signed_request(delivery=f"d{number}")) for number in range(6)]
    assert listening.answers(*pieces, pause_seconds=HEAD_SECONDS / 4) == {202}
    assert len(listening.receiver.inbox.deliveries) == 6, "the last was sent when a connection with one alone had ended"


def test_pipelined_requests_answered_in_turn(listening: Listening) -> None:
    """Requests that come all at once are answered one after another."""
    whole = b"".join(_kept_open(signed_request(delivery=f"d{number}")) for number in range(40))
    assert listening.answers(whole) == {202}
    assert len(listening.receiver.inbox.deliveries) == 40


@pytest.mark.parametrize("path", ["/", "/metrics", "/hooks/none/", "/hooks/none"])
def test_body_after_answer_soon_ignored(path: str, listening: Listening) -> None:
    """A body that goes on after its answer is not listened to for long."""
    begun = chunked(path, Sent({}, b""), b"").replace(b"Connection: close\r\n", b"")
    statuses = listening.answers(begun, b"4000\r\n" + b"x" * 0x4000 + b"\r\n", endless=True)
    assert statuses <= {404, 405, NONE}
    assert listening.is_well()


def test_unreading_client_is_left(listening: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that keeps asking and reads no answer is left."""
    monkeypatch.setattr("plansmith.triggers.receiver.server._ANSWER_SECONDS", 0.5)
    asking = b"GET /metrics HTTP/1.1\r\nHost: a\r\nX-Long: " + b"x" * 200 + b"\r\n\r\n"
    with socket.create_connection(("127.0.0.1", listening.port)) as client:
        client.settimeout(60)
        with pytest.raises(ConnectionError):
            _send_for_ever(client, asking * 20)
    assert listening.dropped("slow") == 1
    assert listening.is_well()


@pytest.mark.parametrize(
    "fragmented",
    [
        pytest.param(chunked(HOOK, Sent({}, b""), b"1\r\nx\r\n" * 170_000), id="chunks"),
        pytest.param(b"POST /hooks/ci HTTP/1.1\nHost: a\n" + b"a:b\n" * 3000 + b"\n", id="headers"),
    ],
)
def test_crumbled_request_not_assembled(fragmented: bytes, listening: Listening) -> None:
    """A request in crumbs is not put together."""
    assert (listening.answers(fragmented), listening.dropped("fragmented")) == ({NONE}, 1)


@pytest.mark.parametrize("size", [8, 100, 5000])
def test_chunked_body_accepted(size: int, listening: Listening) -> None:
    """A right body in chunks is taken."""
    sent = signed_request(signed_request().body.ljust(2000))
    pieces = [sent.body[place : place + size] for place in range(0, len(sent.body), size)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    assert listening.answers(chunked(HOOK, sent, chunks)) == {202}


def test_ambiguous_body_end_refused(listening: Listening) -> None:
    """A right body whose end is told in two ways is not taken."""
    sent = signed_request()
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(sent.body), sent.body)
    twice = chunked(HOOK, sent, chunks, ("Content-Length", str(len(chunks))))
    assert listening.answers(twice) == {400}
    assert not listening.receiver.inbox.deliveries


def test_silent_clients_block_nobody() -> None:
    """More silent clients than there may be keep nobody out."""
    receiver = Receiver(per_minute=10**6)
    with bind("127.0.0.1", 0) as at, _patient(receiver, at), ExitStack() as stack:
        listening = Listening(receiver, at.getsockname()[1])
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", listening.port)))
            for _ in range(MOST_CONNECTIONS + 100)
        ]
        for client in clients[100:]:
            client.sendall(b"POST /hooks/ci HTTP/1.1\r\nContent-Length: 9\r\n")
        assert listening.is_well()
        assert 100 <= listening.dropped("crowded") <= 102
        clients[0].settimeout(60)
        assert clients[0].recv(1) == b"", "the oldest has gone"


def test_withheld_bodies_block_nobody() -> None:
    """Clients that keep their bodies back keep nobody out."""
    receiver = Receiver(per_minute=10**6)
    with bind("127.0.0.1", 0) as at, _patient(receiver, at), ExitStack() as stack:
        listening = Listening(receiver, at.getsockname()[1])
        for _ in range(MOST_CONNECTIONS + 20):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", listening.port)))
            client.sendall(b"POST /hooks/ci HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n")
        assert listening.is_well()
        assert listening.dropped("crowded") >= 20
