"""Requests to an ASGI application in this process: in pieces of any size, and on a clock that never waits."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

Answered = TypeVar("Answered")


@dataclass(frozen=True)
class Answer:
    """What came back; headers with names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class _UnwaitingSelector(selectors.DefaultSelector):
    """Ends every wait for a time at once, and notes for how long it would have been."""

    waited = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select()
        events = super().select(0)
        if not events:
            self.waited += max(timeout, 0.0)
        return events


class _UnwaitingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._selector_of_ours = _UnwaitingSelector()
        super().__init__(self._selector_of_ours)

    def time(self) -> float:
        return self._selector_of_ours.waited


def run_without_waiting(coroutine: Coroutine[Any, Any, Answered]) -> Answered:
    """What a coroutine returns; its waits for a time take none, and each ends in turn. It may wait for no thread."""
    with asyncio.Runner(loop_factory=_UnwaitingLoop) as runner:
        return runner.run(coroutine)


async def at_once(*pieces: bytes) -> AsyncIterator[bytes]:
    """A body in pieces that are all there."""
    for piece in pieces:
        yield piece


async def drop_by_drop(body: bytes, every_seconds: float) -> AsyncIterator[bytes]:
    """A body that comes a byte at a time."""
    for place in range(len(body)):
        yield body[place : place + 1]
        await asyncio.sleep(every_seconds)


async def silence() -> AsyncIterator[bytes]:
    """A body of which nothing comes."""
    await asyncio.Event().wait()
    yield b""


async def ask(
    app: Any,
    method: str,
    path: str,
    body: AsyncIterator[bytes] | bytes = b"",
    *,
    headers: Mapping[str, str] | list[tuple[str, str]] | None = None,
    query: str = "",
    address: str | None = "192.0.2.1",
    hangs_up: bool = False,
) -> Answer:
    """Send a request and read the answer.

    Args:
        app: the application.
        method: of the request.
        path: percent-decoded.
        body: all of it, or its pieces.
        headers: as they are sent.
        query: what stands behind the question mark.
        address: of the client; None where the server does not know it.
        hangs_up: the client goes away after these pieces, before the end of its body.
    """
    pieces = at_once(body) if isinstance(body, bytes) else body
    pairs = list((headers or {}).items()) if not isinstance(headers, list) else headers
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        async for piece in pieces:
            return {"type": "http.request", "body": piece, "more_body": True}
        return {"type": "http.disconnect"} if hangs_up else {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        await asyncio.sleep(0)
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("utf-8", "surrogatepass"),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in pairs],
        "client": None if address is None else (address, 50000),
        "server": ("testserver", 80),
    }
    await app(scope, receive, send)
    start, *rest = sent
    return Answer(
        status=start["status"],
        headers={name.decode(): value.decode() for name, value in start["headers"]},
        body=b"".join(message.get("body", b"") for message in rest),
    )
