"""What lies in the inbox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args

from plansmith.records.model import Record
from plansmith.triggers.registries.event import Event

State = Literal["waiting", "in-work", "done", "set-aside"]
"""Waits for its turn, is leased to a worker, became a run (or needs none), or is left for a person to decide."""

STATES: tuple[State, ...] = get_args(State)


class StartedRun(Record):
    """A flow run that an entry became: its id, the address of its page, and what it compiles."""

    id: str
    address: str = ""
    model: str = ""
    target: str = ""

    @property
    def label(self) -> str:
        """What is compiled, told from all others of one event."""
        return f"{self.model}.{self.target}" if self.model else self.id


WriteBackState = Literal["waiting", "in-work", "written", "set-aside"]
"""Waits for the end of the runs, or to be tried again; is leased to a teller; was told, or is left for a person."""


class WriteBack(Record):
    """How far a registry was told what came of an entry's runs.

    `attempts`: how often that failed; `reason`: why it did last, or what is waited for; `verdict`: what was told of the
    version; `settled_at`: when it was told or set aside.
    """

    entry: int
    state: WriteBackState
    attempts: int
    next_try_at: datetime
    worker: str = ""
    lease: str = ""
    lease_until: datetime | None = None
    reason: str = ""
    verdict: str = ""
    settled_at: datetime | None = None


@dataclass(frozen=True)
class Sibling:
    """One of the entries of a version.

    `told`: how far the registry was told of its runs; None while it has still to become some.
    """

    entry: int
    runs: tuple[StartedRun, ...]
    told: WriteBack | None


class InboxEntry(Record):
    """One event of one delivery, and what came of it.

    `delivery`: its id as the registry gave it; a digest of that where it is long or no plain text. `content_key`: of
    the event. `attempts`: how often a worker has taken it up since it came or was last asked for by a person.
    `next_try_at`: no worker gets it before. `worker`, `lease`, `lease_until`: who has it in work, by what right, and
    until when. `reason`: why it was put off or set aside last. `runs`: what it became; while it is not done, what it
    had become before a person asked for it again. `started`: what it has become while others of its runs have still to
    be started, with those of `runs` that nothing took the place of. `settled_at`: when it was done or set aside.
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
    started: tuple[StartedRun, ...] = ()
    settled_at: datetime | None = None

    @property
    def known_runs(self) -> tuple[StartedRun, ...]:
        """The newest run of each model and target that there is one of."""
        return self.started or self.runs

    def with_started(self, runs: Sequence[StartedRun]) -> tuple[StartedRun, ...]:
        """What `started` is when some more runs have been: nothing as long as none has."""
        if not runs:
            return self.started
        return tuple({run.label: run for run in (*self.known_runs, *runs)}.values())
