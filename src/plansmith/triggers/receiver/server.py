"""Where the receiver listens: a port that is ours before anything else begins, and the server at it."""

from __future__ import annotations

import errno
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

from plansmith.config.service.triggers import Limits
from plansmith.errors import EnvironmentFault, UsageError
from plansmith.triggers.metrics import Metrics
from plansmith.triggers.receiver.connections import connections

if TYPE_CHECKING:
    from starlette.applications import Starlette

_END_SECONDS = 10
_START_SECONDS = 60.0
_LOOK_SECONDS = 0.02


def require_server() -> None:
    """See that what listens is installed.

    Raises:
        EnvironmentFault: a library is missing.
    """
    try:
        import prometheus_client  # noqa: F401 - whether it is there
        import sqlalchemy  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise EnvironmentFault(f"{error.name} is not installed", remedy="pip install 'plansmith[triggers]'") from error


def bind(host: str, port: int) -> socket.socket:
    """A socket with an address of this machine.

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
    made = socket.socket(family, kind, protocol)
    # Connections of one that has just ended keep its port for a minute otherwise.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind(address)
        made.listen()
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise UsageError(f"{host} is no address of this machine", remedy="name one with --host") from error
        raise EnvironmentFault(
            f"cannot listen at {host}, port {port}: {error.strerror}",
            remedy="end what listens there, or name another with --port",
        ) from error
    return made


def address_of(listening: socket.socket) -> str:
    """The URL of what listens at a socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class ReceiverServer:
    """A server at a socket, in a thread of its own, for the length of a block; entered, it answers.

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
        """Whether it answers; it ends by itself where something is very wrong."""
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
        """Take no more connections, and let what was begun come to its end."""
        self._server.should_exit = True

    def _serve(self) -> None:
        with suppress(SystemExit):  # which it raises where it does not start
            self._server.run(sockets=[self._at])
