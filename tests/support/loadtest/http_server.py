"""A small HTTP server that answers as a test says: at once, late, with errors, or not at all."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self


@dataclass(frozen=True)
class Response:
    """One answer; `cuts` ends the connection instead, and a status of 0 is never answered."""

    status: int = 200
    body: bytes = b"{}"
    after_seconds: float = 0
    cuts: bool = False
    headers: dict[str, str] = field(default_factory=dict)


Answer = Callable[[int], Response]
"""The answer to a request, by its number from 0."""


class HttpServer:
    """Answers POST requests from a thread of its own; a context manager.

    Attributes:
        answer: what it answers; a test changes it while the server runs.
        paths: how often each path was requested.
        headers: of the last request, in lower case.
        requests: how many requests came.
        max_connections: connections that were open at a time.
        place: `host:port`.
    """

    def __init__(self, answer: Answer = lambda _: Response()) -> None:
        self.answer = answer
        self.paths: Counter[str] = Counter()
        self.headers: dict[str, str] = {}
        self.requests = 0
        self.max_connections = 0
        self.place = ""
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.die()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def die(self) -> None:
        """Listen no more, and cut all connections."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.place = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _end(self) -> None:
        self._server.close()
        for writer in self._open:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(writer)
        self._tasks.add(task)
        self.max_connections = max(self.max_connections, len(self._open))
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(writer)
            self._tasks.discard(task)
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        await reader.readexactly(int(headers.get("content-length", 0)))
        response = Response(404, b"")
        if method == "POST":
            response = self.answer(self.requests)
            self.requests += 1
            self.paths[path] += 1
            self.headers = headers
        if response.after_seconds:
            await asyncio.sleep(response.after_seconds)
        if not response.status:
            await asyncio.Event().wait()
        if response.cuts:
            return False
        fields = {"Content-Length": str(len(response.body)), **response.headers}
        lines = [f"HTTP/1.1 {response.status} .", *(f"{name}: {value}" for name, value in fields.items())]
        writer.write("\r\n".join([*lines, "\r\n"]).encode() + response.body)
        await writer.drain()
        return True
