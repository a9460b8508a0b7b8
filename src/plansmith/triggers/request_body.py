"""The body of a request, as far and as long as the service reads one."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from plansmith.config.service.triggers import Limits

if TYPE_CHECKING:
    from starlette.requests import Request


class Unread(Exception):
    """A body that was not read to its end.

    Args:
        outcome: one word for it.
        status: of the answer.
    """

    def __init__(self, outcome: str, status: int) -> None:
        super().__init__(outcome)
        self.outcome = outcome
        self.status = status


async def read_body(request: Request, limits: Limits) -> bytes:
    """The bytes of a body; what its header says of their number is not believed.

    Raises:
        Unread: there are too many of them, they take too long, or the client went away.
    """
    from starlette.requests import ClientDisconnect

    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds), aclosing(request.stream()) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > limits.body_bytes:
                    raise Unread("oversized", 413)
    except TimeoutError:
        raise Unread("slow", 408) from None
    except ClientDisconnect:
        raise Unread("left", 400) from None
    return bytes(body)


def headers_of(request: Request) -> dict[str, str]:
    """Headers by names in lower case; one that comes twice is both values, which no signature and no secret is."""
    found: dict[str, str] = {}
    for name, value in request.headers.items():
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found
