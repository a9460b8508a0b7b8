"""Receiver server: binds its port before anything else starts, and serves on it."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from plansmith.config.service_triggers import Limits
from plansmith.errors import EnvironmentFault, UsageError
from plansmith.triggers.metrics import Metrics

if TYPE_CHECKING:
    from starlette.applications import Starlette


MOST_CONNECTIONS = 512
_ANSWER_SECONDS = 60.0
"""From the last byte of a request to the first of its answer, at most; an inbox that is busy may need half of it."""

# A header of a letter, or a chunk of a byte, costs as much to read as one of many thousands.
_LINES = 1024
_BYTES_OF_A_LINE = 32

_END_SECONDS = 10
_START_SECONDS = 60.0
_LOOK_SECONDS = 0.02


@dataclass
class _Request:
    """The state of a request: its bytes and lines so far, and its start time."""

    since: float
    size: int = 0
    lines: int = 0

    def is_fragmented(self, data: bytes) -> bool:
        """Whether the request has too many lines for its size, including these bytes."""
        self.size += len(data)
        self.lines += data.count(b"\n")
        return self.lines > _LINES + self.size // _BYTES_OF_A_LINE


def connections(limits: Limits, dropped: Callable[[str], None], most: int = MOST_CONNECTIONS) -> type[asyncio.Protocol]:
    """Return the server's connection protocol class, with limits added.

    Args:
        limits: how long a client may take.
        dropped: told of each connection that was ended before its time, in a word: "slow", "crowded" or "fragmented".
        most: how many there may be; of more, the one that has kept us waiting for longest ends.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Connection(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None
        _request: _Request

        @property
        def is_waited_for(self) -> bool:
            """Whether it is the client's turn."""
            return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as the server has it
            super().connection_made(transport)
            self._wait_for_head()
            active = [peer for peer in self.connections if not peer.transport.is_closing()]
            if len(active) > most:
                waited_for = [peer for peer in active if isinstance(peer, Connection) and peer.is_waited_for]
                oldest = min(waited_for, key=lambda peer: peer._request.since)  # noqa: SLF001 - of this class; self is one
                oldest._drop("crowded")  # noqa: SLF001

        def connection_lost(self, exc: Exception | None) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._request.is_fragmented(data):
                self._drop("fragmented")
                return
            before = self.cycle
            super().data_received(data)
            if self.cycle is not before:
                self._wait(limits.body_seconds + _ANSWER_SECONDS)

        def on_response_complete(self) -> None:
            answered = self.cycle
            self._wait_for_head()
            super().on_response_complete()
            if self.cycle is not answered:  # the next request was there already
                self._wait(limits.body_seconds + _ANSWER_SECONDS)

        def _wait_for_head(self) -> None:
            self._request = _Request(time.monotonic())
            self._wait(limits.head_seconds)

        def _wait(self, seconds: float) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
            self._deadline = self.loop.call_later(seconds, self._drop, "slow")

        def _drop(self, why: str) -> None:
            dropped(why)
            self.transport.abort()

    return Connection


def require_server() -> None:
    """Require that the server library is installed.

    Raises:
        EnvironmentFault: a library is missing.
    """
    try:
        import jinja2  # noqa: F401 - whether it is there
        import prometheus_client  # noqa: F401
        import sqlalchemy  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise EnvironmentFault(f"{error.name} is not installed", remedy="pip install 'plansmith[triggers]'") from error


def bind(host: str, port: int) -> socket.socket:
    """Bind a socket to an address of this machine.

    Args:
        host: a name or an address; of a name, its first address.
        port: 0 for one that is free.

    Raises:
        UsageError: the host is none of this machine.
        EnvironmentFault: the port is taken, or is not ours to take.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise UsageError(f"there is no host {host}: {error.strerror}", remedy="name one with --host") from error
    listener = socket.socket(family, kind, protocol)
    # Connections of one that has just ended keep its port for a minute otherwise.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen()
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise UsageError(f"{host} is no address of this machine", remedy="name one with --host") from error
        raise EnvironmentFault(
            f"cannot listen at {host}, port {port}: {error.strerror}",
            remedy="end what listens there, or name another with --port",
        ) from error
    return listener


def address_of(listening: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class ReceiverServer:
    """HTTP server on a socket, in its own thread for the duration of a block; ready once entered.

    Args:
        app: what it asks.
        at: where; closed in the end.
        limits: how long a client may take; the usual ones when left out.
        metrics: counts connections that are ended before their time; nobody does when left out.
    """

    def __init__(
        self, app: Starlette, at: socket.socket, *, limits: Limits | None = None, metrics: Metrics | None = None
    ) -> None:
        import uvicorn

        config = uvicorn.Config(
            app,
            loop="asyncio",
            http=connections(limits or Limits(), (metrics or Metrics()).count_dropped),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_END_SECONDS,
        )
        self._server = uvicorn.Server(config)
        self._at = at
        # uvicorn takes signals in the main thread alone.
        self._thread = threading.Thread(target=self._serve, name="receiver", daemon=True)

    @property
    def is_running(self) -> bool:
        """Whether the server is running; it stops by itself after a fatal error."""
        return self._thread.is_alive()

    def __enter__(self) -> ReceiverServer:
        self._thread.start()
        waited = threading.Event()
        for _ in range(int(_START_SECONDS / _LOOK_SECONDS)):
            if self._server.started or not self.is_running:
                break
            waited.wait(_LOOK_SECONDS)
        if not self._server.started:
            raise EnvironmentFault("the receiver does not start", remedy="see what stands above, and start it again")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._thread.join(_END_SECONDS + 2)

    def stop(self) -> None:
        """Stop gracefully: accept no more connections, and finish those in progress."""
        self._server.should_exit = True

    def _serve(self) -> None:
        with suppress(SystemExit):  # which it raises where it does not start
            self._server.run(sockets=[self._at])
