"""The body of a request, as far and as long as the service reads one."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from ipaddress import ip_address
from typing import TYPE_CHECKING

from plansmith.config.service.triggers import Limits

if TYPE_CHECKING:
    from starlette.requests import Request

_FREE_BYTES = 16 << 10  # of each body: more than registries send
_SHARED_BYTES = 64 << 20
_AGAIN_SECONDS = 2
_LONGEST_ADDRESS = 64  # with the name of a network interface behind it


class Unread(Exception):
    """A body that was not read to its end.

    Args:
        outcome: one word for it.
        status: of the answer.
        wait_seconds: after which it may be sent again; 0 where that does not help.
    """

    def __init__(self, outcome: str, status: int, wait_seconds: float = 0) -> None:
        super().__init__(outcome)
        self.outcome = outcome
        self.status = status
        self.wait_seconds = wait_seconds


class BodyReader:
    """Reads bodies of requests, many at once, in so much memory.

    Args:
        limits: of each of them.
        shared_bytes: by how much all that are being read may be longer, together, than nearly all bodies are.
    """

    def __init__(self, limits: Limits, shared_bytes: int = _SHARED_BYTES) -> None:
        self._limits = limits
        self._left = shared_bytes

    async def read(self, request: Request) -> bytes:
        """The bytes of a body; what its header says of their number is not believed.

        Raises:
            Unread: there are too many of them, they take too long, the client went away, its end is told in two ways,
                or there is no room for it now.
        """
        if "content-length" in request.headers and "transfer-encoding" in request.headers:
            raise Unread("ambiguous", 400)  # a proxy may have seen its end elsewhere, and another's request within it
        body, shared, is_all = bytearray(), 0, False
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                while not is_all:
                    message = await request.receive()
                    if message["type"] != "http.request":
                        raise Unread("left", 400)
                    body += message.get("body", b"")
                    is_all = not message.get("more_body", False)
                    if len(body) > self._limits.body_bytes:
                        raise Unread("oversized", 413)
                    more = max(len(body) - _FREE_BYTES, 0) - shared
                    shared, self._left = shared + more, self._left - more
                    if more and self._left < 0:
                        raise Unread("crowded", 503, _AGAIN_SECONDS)
        except TimeoutError:
            raise Unread("slow", 408) from None
        finally:
            self._left += shared
        return bytes(body)


def address_of(request: Request) -> str:
    """The client's address, where that is one: a proxy may pass on whatever a client says of itself."""
    given = request.client.host if request.client else ""
    return _address(given) if len(given) <= _LONGEST_ADDRESS else ""


@lru_cache
def _address(given: str) -> str:
    try:
        return str(ip_address(given))
    except ValueError:
        return ""


def headers_of(request: Request) -> dict[str, str]:
    """Headers by names in lower case; one that comes twice is both values, which no signature and no secret is."""
    found: dict[str, str] = {}
    for name, value in request.headers.items():
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found
