"""BodyReader that are not there to their end take so much memory together, and small ones are read all the same."""

from __future__ import annotations

import asyncio

import pytest

from plansmith.config.service_triggers import Limits
from plansmith.triggers.receiver.application import BodyReader, Unread

LARGE, SMALL = 50_000, 16_000
BODY_SECONDS = 3600


class _Sender:
    """A request whose body comes in two pieces, the last byte when it is told to; or whose client goes away before."""

    def __init__(self, size: int, *, goes: bool = False) -> None:
        from starlette.requests import Request

        self.goes_on = asyncio.Event()
        self._size, self._goes, self._pieces = size, goes, [b"x" * (size - 1), b"x"]
        self.request = Request({"type": "http", "method": "POST", "headers": []}, self._receive)

    async def _receive(self) -> dict[str, object]:
        if len(self._pieces) == 1:
            await self.goes_on.wait()
            if self._goes:
                return {"type": "http.disconnect"}
        return {"type": "http.request", "body": self._pieces.pop(0), "more_body": bool(self._pieces)}

    async def begun(self, bodies: BodyReader) -> asyncio.Task[bytes]:
        task = asyncio.create_task(bodies.read(self.request))
        await asyncio.sleep(0)  # its turn, in which it reads all that has come
        return task

    async def size_read(self, bodies: BodyReader) -> int:
        self.goes_on.set()
        return len(await bodies.read(self.request))


class _Clock:
    """That of the running loop, and as much later as it is told to be."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.later = 0.0
        loop = asyncio.get_running_loop()
        now = loop.time
        monkeypatch.setattr(loop, "time", lambda: now() + self.later)


@pytest.mark.parametrize("end", ["read", "left", "slow"])
def test_ended_bodies_free_room(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for large bodies again when others have come to their end."""

    async def crowded() -> None:
        clock = _Clock(monkeypatch)
        bodies = BodyReader(Limits(body_seconds=BODY_SECONDS), shared_bytes=LARGE)
        first = _Sender(LARGE, goes=end == "left")
        reading = await first.begun(bodies)
        assert await _Sender(SMALL).size_read(bodies) == SMALL
        with pytest.raises(Unread) as refused:
            await _Sender(LARGE).size_read(bodies)
        assert (refused.value.outcome, refused.value.status, refused.value.wait_seconds) == ("crowded", 503, 2)
        if end == "slow":
            clock.later += BODY_SECONDS
        else:
            first.goes_on.set()
        await asyncio.wait([reading])
        assert (reading.exception() is None) == (end == "read")
        assert await _Sender(LARGE).size_read(bodies) == LARGE

    asyncio.run(crowded())
