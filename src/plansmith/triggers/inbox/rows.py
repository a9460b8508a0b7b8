"""Deliveries and entries as rows of the inbox's tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter

from plansmith.system.digest import digest_of
from plansmith.triggers.inbox.entry import InboxEntry, StartedRun, WriteBack
from plansmith.triggers.registries.event import Event

_LONGEST_KEY, _LONGEST_TEXT = 200, 2000
_RUNS = TypeAdapter(tuple[StartedRun, ...])


@dataclass(frozen=True)
class Delivery:
    """What came from a registry; `delivery` as `key_of` gives it, the rest as a registry's has it."""

    registry: str
    delivery: str
    events: tuple[Event, ...]
    recurs: bool = False
    expires: bool = False


def place_of(event: Event) -> dict[str, str]:
    """Where an event belongs: the lane of all events of one model; in it the topic, where the newest of one counts."""
    topic = digest_of(event.topic) if event.is_current else ""
    return {"lane": digest_of([event.registry, event.model]), "topic": topic}


def row_of(delivery: Delivery, event: Event, received: float) -> dict[str, Any]:
    """What the row of a new entry is made of."""
    return {
        "registry": delivery.registry,
        "delivery": delivery.delivery,
        **place_of(event),
        "event": event.model_dump_json(),
        "content_key": event.content_key,
        "received": received,
    }


def entry_of(row: Mapping[str, Any]) -> InboxEntry:
    """The entry of a row.

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
    """The telling of a row."""
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
    """Runs as `written_runs` wrote them.

    Raises:
        ValidationError: they are none.
    """
    return _RUNS.validate_json(text)


def written_runs(runs: Iterable[StartedRun]) -> str:
    """Runs as they stand in a row."""
    return _RUNS.dump_json(tuple(runs)).decode()


def key_of(delivery: str) -> str:
    """The id of a delivery as it is kept: what databases do not take in an index or a text, as its digest."""
    if len(delivery) <= _LONGEST_KEY and delivery.isprintable():
        return delivery
    return f"sha256:{digest_of(delivery)}"


def plain(text: str) -> str:
    """Text that every database takes: not for ever, without NUL and halves of characters."""
    return text.encode(errors="replace").decode().replace("\0", "")[:_LONGEST_TEXT]


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
