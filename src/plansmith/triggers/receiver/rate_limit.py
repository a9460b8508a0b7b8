"""How many requests an address may send in a minute."""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address

_MINUTE = 60.0
_ROUNDING = 0.01  # of a request: times of this century are rounded to a quarter of a microsecond


class Rates:
    """A minute's worth of requests at once, and after them as many as fit evenly into a minute.

    Each address has a bucket that every request fills by one, and that runs empty within a minute.

    Args:
        per_minute: how many requests.
        addresses: how many of them are remembered; the one that has been silent for longest is forgotten first.
    """

    def __init__(self, per_minute: int, *, addresses: int = 10_000) -> None:
        self._most = per_minute
        self._per_second = per_minute / _MINUTE
        self._addresses = addresses
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()  # and when they were that high

    def wait_seconds(self, address: str, now: float) -> float:
        """How long an address has to wait before its next request; 0 where this one is taken.

        Args:
            address: of the client; all that share the first 64 bits of IPv6 are one, as a client has them all.
            now: by a clock that may be set back: nothing runs out meanwhile.
        """
        key = _key_of(address)
        level, since = self._levels.get(key, (0.0, now))
        level = max(0.0, level - max(0.0, now - since) * self._per_second)
        over = level + 1 - self._most
        taken = over <= _ROUNDING
        self._levels[key] = (level + 1 if taken else level, now)
        self._levels.move_to_end(key)
        if len(self._levels) > self._addresses:
            self._levels.popitem(last=False)
        return 0.0 if taken else over / self._per_second

    def __len__(self) -> int:
        return len(self._levels)


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
