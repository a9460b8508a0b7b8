"""Connections that send what they like: raw bytes, at once or slowly, and what is answered."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from .hostile import NONE, Hostile

_STATUS = re.compile(rb"HTTP/1\.1 ([0-9]{3}) ")
_CONTINUE = 100
_PATIENCE_SECONDS = 60.0
_RESET = struct.pack("ii", 1, 0)  # close() does not wait, and says so to the other side


@dataclass
class Storm:
    """What came of many requests.

    `wrong`: those whose answer they must not get, or that were not answered and not hung up on either. `genuine`: the
    status of each right delivery between them; NONE, too, for one that was held up.
    """

    wrong: list[tuple[str, set[int]]] = field(default_factory=list)
    genuine: list[int] = field(default_factory=list)


async def send(port: int, hostile: Hostile) -> set[int]:
    """Send something, and read all answers until the connection ends.

    Raises:
        TimeoutError: it does not end.
    """
    async with asyncio.timeout(_PATIENCE_SECONDS):
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return {NONE}
        sending = asyncio.create_task(_write(writer, hostile))
        try:
            if hostile.ending in {"closes", "resets"}:
                await sending
                return {NONE}
            return await _statuses(reader)
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await sending
            await _close(writer, hard=hostile.ending == "resets")


async def ask(port: int, data: bytes) -> int:
    """The status of the first answer; NONE where none comes."""
    line = b""
    with suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            line = await reader.readline()
            await _close(writer)
    status = _STATUS.match(line)
    return int(status[1]) if status else NONE


async def storm(
    port: int,
    hostiles: Sequence[tuple[str, Callable[[], Hostile]]],
    genuine: Sequence[Callable[[], bytes]],
    *,
    at_once: int,
) -> Storm:
    """Send all of it, so many at once, and right deliveries one after another, spread among them.

    Args:
        port: of the receiver.
        hostiles: each with what it is called, made when its turn has come: what it says of the time is of then.
        genuine: likewise.
        at_once: how many connections.
    """
    result, left = Storm(), list(reversed(hostiles))
    total = len(left)

    async def send_some() -> None:
        while left:
            name, make = left.pop()
            hostile = make()
            try:
                statuses = await send(port, hostile)
            except TimeoutError:
                result.wrong.append((name, set()))
                continue
            if statuses - hostile.may:
                result.wrong.append((name, statuses))

    async def send_right_ones() -> None:
        for number, make in enumerate(genuine):
            while left and total - len(left) < number * total / len(genuine):
                await asyncio.sleep(0.002)
            result.genuine.append(await ask(port, make()))

    await asyncio.gather(send_right_ones(), *(send_some() for _ in range(at_once)))
    return result


async def _write(writer: asyncio.StreamWriter, hostile: Hostile) -> None:
    with suppress(OSError):
        for piece in hostile.pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(hostile.pause_seconds)
        while hostile.endless:
            writer.write(hostile.pieces[-1])
            await writer.drain()
            await asyncio.sleep(hostile.pause_seconds)
        if hostile.ending == "half-closes" and writer.can_write_eof():
            writer.write_eof()


async def _statuses(reader: asyncio.StreamReader) -> set[int]:
    data = b""
    with suppress(OSError):
        while more := await reader.read(65_536):
            data += more
    statuses = {int(status) for status in _STATUS.findall(data)} - {_CONTINUE}
    return statuses or {NONE}


async def _close(writer: asyncio.StreamWriter, *, hard: bool = False) -> None:
    raw = writer.get_extra_info("socket")
    if hard and raw is not None:
        with suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()
