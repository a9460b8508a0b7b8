"""The names that the pages are served under.

Another site may have its own name lead to this machine (DNS rebinding), and read what a browser here is shown under
that name. Addresses and localhost are nobody's name; every other name is refused unless the configuration lists it.
Starlette's middleware for this knows neither addresses in general nor those of IPv6.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING

from plansmith.triggers.pages import responses

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    Handler = Callable[[Request], Awaitable[Response]]

_HOST = re.compile(r"(?:\[(?P<address>[^\[\]]*)\]|(?P<name>[^:\[\]]*))(?::[0-9]{0,5})?")
_LOCALHOST = "localhost"


class AllowedHosts:
    """The hosts that a request may name.

    Args:
        names: besides localhost and every address; in any case.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {_LOCALHOST, *map(_normalized, names)}

    def allows(self, headers: Sequence[str]) -> bool:
        """Whether a request names an allowed host.

        Args:
            headers: the request's `Host` headers: one, with a port or without.
        """
        match = _HOST.fullmatch(headers[0]) if len(headers) == 1 else None
        if match is None:
            return False
        name = _normalized(match["name"] or "")
        return name in self._names or _is_address(match["address"] or name)

    def protect(self, page: Handler) -> Handler:
        """A page that answers requests for an allowed host only."""

        async def answer(request: Request) -> Response:
            return await page(request) if self.allows(request.headers.getlist("host")) else responses.misdirected()

        return answer


def _normalized(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
