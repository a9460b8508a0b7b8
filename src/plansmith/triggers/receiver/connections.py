"""Connections to the receiver: no client is waited for without end, and none costs more than what it sends.

The server knows no limit for the head of a request nor for what comes after an answer, and turns requests away when it
has many connections: some hundred clients that send nothing would keep all others out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from plansmith.config.service.triggers import Limits

MOST_CONNECTIONS = 512
_ANSWER_SECONDS = 60.0
"""From the last byte of a request to the first of its answer, at most; an inbox that is busy may need half of it."""

# A header of a letter, or a chunk of a byte, costs as much to read as one of many thousands.
_LINES = 1024
_BYTES_OF_A_LINE = 32


@dataclass
class _Request:
    """What has come of a request, or is waited for before it: bytes, lines, and since when."""

    since: float
    size: int = 0
    lines: int = 0

    def is_fragmented(self, data: bytes) -> bool:
        """Whether it has too many lines for its size, with these bytes."""
        self.size += len(data)
        self.lines += data.count(b"\n")
        return self.lines > _LINES + self.size // _BYTES_OF_A_LINE


def connections(limits: Limits, dropped: Callable[[str], None], most: int = MOST_CONNECTIONS) -> type[asyncio.Protocol]:
    """What the server makes of each connection, instead of its own.

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
            if len(open_ones := [one for one in self.connections if not one.transport.is_closing()]) > most:
                waited_for = [one for one in open_ones if isinstance(one, Connection) and one.is_waited_for]
                oldest = min(waited_for, key=lambda one: one._request.since)  # noqa: SLF001 - of this class; self is one
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
