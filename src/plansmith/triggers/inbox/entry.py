"""Inbox entries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from pydantic import TypeAdapter

from plansmith.formatting import minute
from plansmith.records.model import Record
from plansmith.system.digest import digest_of
from plansmith.triggers.registries.delivery import Event

State = Literal["waiting", "in-work", "done", "set-aside"]
"""Waits for its turn, is leased to a worker, became a run (or needs none), or is left for a person to decide."""

STATES: tuple[State, ...] = get_args(State)

WriteBackState = Literal["waiting", "in-work", "written", "set-aside"]
"""Waits for the end of the runs, or to be tried again; is leased to a teller; was told, or is left for a person."""


class StartedRun(Record):
    """A compile started for an entry: its ID, the URL of its page at Prefect, and what it compiles.

    Where the service compiles models itself, `address` is where the version stands.
    """

    id: str
    address: str = ""
    model: str = ""
    target: str = ""

    @property
    def published_in(self) -> str:
        """Where the service itself published the version; empty for a flow run."""
        return "" if "://" in self.address else self.address

    @property
    def label(self) -> str:
        """A label of the compile, unique among the runs of one event."""
        return f"{self.model}.{self.target}" if self.model else self.id


class WriteBack(Record):
    """State of a write-back of an entry's results to a registry.

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
    """One of the entries for the same version.

    `write_back`: how far the registry was told of its runs; None while it has still to become some.
    """

    entry: int
    runs: tuple[StartedRun, ...]
    write_back: WriteBack | None


class InboxEntry(Record):
    """Inbox entry: one event of one delivery, and its state.

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
        """The newest run of each model and target that has one."""
        return self.started or self.runs

    def with_started(self, runs: Sequence[StartedRun]) -> tuple[StartedRun, ...]:
        """Return the value of `started` after some more runs; empty if none was started."""
        if not runs:
            return self.started
        return tuple({run.label: run for run in (*self.known_runs, *runs)}.values())


_LONGEST_KEY, _LONGEST_TEXT = 200, 2000
_RUNS = TypeAdapter(tuple[StartedRun, ...])


@dataclass(frozen=True)
class Delivery:
    """A registry's delivery of events; `delivery` is its idempotency key as from `key_of`."""

    registry: str
    delivery: str
    events: tuple[Event, ...]
    recurs: bool = False
    expires: bool = False


def place_of(event: Event) -> dict[str, str]:
    """Return an event's lane, shared by all events of one model, and its topic, in which only the newest counts."""
    topic = digest_of(event.topic) if event.is_current else ""
    return {"lane": digest_of([event.registry, event.model]), "topic": topic}


def row_of(delivery: Delivery, event: Event, received: float) -> dict[str, Any]:
    """Return the column values of a new entry."""
    return {
        "registry": delivery.registry,
        "delivery": delivery.delivery,
        **place_of(event),
        "event": event.model_dump_json(),
        "content_key": event.content_key,
        "received": received,
    }


def entry_of(row: Mapping[str, Any]) -> InboxEntry:
    """Parse the row of an entry.

    Raises:
        ValidationError: it is none.
    """
    until, settled = row["lease_until"], row["settled"]
    return InboxEntry(
        id=row["id"],
        registry=row["registry"],
        delivery=row["delivery"],
        event=Event.model_validate_json(row["event"]),
        content_key=row["content_key"],
        received_at=_moment(row["received"]),
        state=row["state"],
        attempts=row["attempts"],
        next_try_at=_moment(row["next_try"]),
        worker=row["worker"],
        lease=row["lease"],
        lease_until=None if until is None else _moment(until),
        reason=row["reason"],
        runs=read_runs(row["runs"]),
        started=read_runs(row["started"]),
        settled_at=None if settled is None else _moment(settled),
    )


def write_back_of(row: Mapping[str, Any]) -> WriteBack:
    """Parse the row of a write-back."""
    until, settled = row["lease_until"], row["settled"]
    return WriteBack(
        entry=row["entry"],
        state=row["state"],
        attempts=row["attempts"],
        next_try_at=_moment(row["next_try"]),
        worker=row["worker"],
        lease=row["lease"],
        lease_until=None if until is None else _moment(until),
        reason=row["reason"],
        verdict=row["verdict"],
        settled_at=None if settled is None else _moment(settled),
    )


def read_runs(text: str) -> tuple[StartedRun, ...]:
    """Parse runs serialized by `written_runs`.

    Raises:
        ValidationError: they are none.
    """
    return _RUNS.validate_json(text)


def written_runs(runs: Iterable[StartedRun]) -> str:
    """Serialize runs for a row."""
    return _RUNS.dump_json(tuple(runs)).decode()


def key_of(delivery: str) -> str:
    """Return a delivery ID as stored; one that databases do not accept as an index or text becomes its digest."""
    if len(delivery) <= _LONGEST_KEY and delivery.isprintable():
        return delivery
    return f"sha256:{digest_of(delivery)}"


def plain(text: str) -> str:
    """Return text that every database accepts: limited in length, without NUL and lone surrogates."""
    return text.encode(errors="replace").decode().replace("\0", "")[:_LONGEST_TEXT]


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def shown_state(entry: InboxEntry) -> str:
    """Return an entry's state for display; of flow runs the inbox only knows that they were started."""
    if entry.state != "done":
        return entry.state
    if entry.runs:
        return "published" if all(run.published_in for run in entry.runs) else "started"
    return "outdated" if entry.reason else "unwanted"


def describe_write_back(write_back: WriteBack) -> str:
    """Describe a write-back's state in one line; messages from others are kept as they are."""
    if write_back.state == "written":
        at = f" ({minute(write_back.settled_at.isoformat())})" if write_back.settled_at else ""
        return f"the registry was told: {write_back.verdict or 'what a younger event says'}{at}"
    if write_back.state == "in-work":
        return "the registry is being told"
    attempts = f"{write_back.attempts} {'attempt' if write_back.attempts == 1 else 'attempts'}"
    if write_back.state == "set-aside":
        return f"the registry was not told: {write_back.reason} ({attempts})"
    suffix = f": {write_back.reason}" if write_back.reason else ""
    again = f" ({attempts}, again at {minute(write_back.next_try_at.isoformat())})" if write_back.attempts else ""
    return f"the registry is not told yet{suffix}{again}"
