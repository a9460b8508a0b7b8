"""How many requests an address may send in a minute, told in one number for each."""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address

_MINUTE = 60.0


class Rates:
    """A minute's worth of requests at once, and after them as many as fit evenly into a minute.

    For each address the time is kept until which its requests, spread evenly, would take: it may lie a minute ahead.

    Args:
        per_minute: how many requests.
        addresses: how many of them are remembered; the one that has been silent for longest is forgotten first.
    """

    def __init__(self, per_minute: int, *, addresses: int = 10_000) -> None:
        self._interval = _MINUTE / per_minute
        self._addresses = addresses
        self._busy_until: OrderedDict[str, float] = OrderedDict()

    def wait_seconds(self, address: str, now: float) -> float:
        """How long an address has to wait before its next request; 0 where this one is taken.

        Args:
            address: of the client; all that share the first 64 bits of IPv6 are one, as a client has them all.
            now: by a clock that may be set back: what lies further ahead than it can is forgotten.
        """
        key = _key_of(address)
        until = max(self._busy_until.get(key, now), now)
        if until > now + _MINUTE + self._interval:
            until = now
        wait = until + self._interval - now - _MINUTE
        taken = wait <= self._interval / 2  # the times are rounded, and the last of a minute's worth is one of it
        self._busy_until[key] = until + self._interval if taken else until
        self._busy_until.move_to_end(key)
        if len(self._busy_until) > self._addresses:
            self._busy_until.popitem(last=False)
        return 0.0 if taken else wait

    def __len__(self) -> int:
        return len(self._busy_until)


def _key_of(address: str) -> str:
    if ":" not in address:
        return address
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return address
    return str(found.ipv4_mapped) if found.ipv4_mapped else f"{int(found) >> 64:x}"
