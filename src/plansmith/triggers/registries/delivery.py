"""What a request of a registry turns out to be: events, nothing to do, or nothing that may be believed."""

from __future__ import annotations

from typing import Literal

from plansmith.records.model import Record
from plansmith.triggers.registries.event import Event

RefusalKind = Literal["signature", "timestamp", "malformed"]
"""Who sent it is not proven; it is too old or of the future; it is proven and says nothing that can be read."""


class Delivery(Record):
    """A request that is what it claims to be.

    `id`: the same for a request and all its repetitions, at most 128 of A-Z a-z 0-9 _ - . `events`: at least one.
    `recurs`: the id is of what it tells alone, as the registry sends none: what comes back after something else was
    told is news, and no repetition. `expires`: it is signed with a time, and too old to be taken again a day later.
    """

    id: str
    events: tuple[Event, ...]
    recurs: bool = False
    expires: bool = False


class Ignored(Record):
    """A request that is what it claims to be, and tells of nothing that a build cares for; `reason` in a few words."""

    reason: str


class RequestRejected(Exception):
    """A request that nothing may follow from.

    Args:
        kind: of what is wrong.
        reason: in a few words that are ours alone: nothing of the request, no secret, so that it may be logged.
    """

    def __init__(self, kind: RefusalKind, reason: str) -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind = kind
        self.reason = reason
