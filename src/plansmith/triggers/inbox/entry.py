"""What lies in the inbox."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, get_args

from plansmith.records.model import Record
from plansmith.triggers.registries.event import Event

State = Literal["waiting", "in-work", "done", "set-aside"]
"""Waits for its turn, is leased to a worker, became a run (or needs none), or is left for a person to decide."""

STATES: tuple[State, ...] = get_args(State)


class StartedRun(Record):
    """A flow run that an entry became: its id, and the address of its page."""

    id: str
    address: str = ""


class Entry(Record):
    """One event of one delivery, and what came of it.

    `delivery`: its id as the registry gave it; a digest of that where it is long or no plain text. `content_key`: of
    the event. `attempts`: how often a worker has taken it up since it came or was last asked for by a person.
    `next_try_at`: no worker gets it before. `worker`, `lease`, `lease_until`: who has it in work, by what right, and
    until when. `reason`: why it was put off or set aside last. `settled_at`: when it was done or set aside.
    """

    id: int
    registry: str
    delivery: str
    event: Event
    content_key: str
    received_at: datetime
    state: State
    attempts: int
    next_try_at: datetime
    worker: str = ""
    lease: str = ""
    lease_until: datetime | None = None
    reason: str = ""
    runs: tuple[StartedRun, ...] = ()
    settled_at: datetime | None = None
