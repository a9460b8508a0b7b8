"""The inbox: every delivery that was acknowledged, until it became a run. What it says it did is on the disk."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from plansmith.errors import EnvironmentFault
from plansmith.triggers.inbox import sql
from plansmith.triggers.inbox.database import Database
from plansmith.triggers.inbox.entry import STATES, Entry, StartedRun, State
from plansmith.triggers.inbox.group_commit import Together
from plansmith.triggers.inbox.location import read_url
from plansmith.triggers.inbox.rows import Delivery, entry_of, key_of, plain, row_of, written_runs
from plansmith.triggers.registries.event import Event

DELIVERY_DAYS = 30
"""How long a delivery is known, so that its repetition is none: longer than any registry repeats one. SQS keeps
messages for 14 days at most; MLflow's and signed hooks' deliveries are refused sooner, for their age."""

Clock = Callable[[], datetime]


def _now() -> datetime:
    return datetime.now(UTC)


def open_inbox(url: str, *, make: bool = True, clock: Clock = _now) -> Inbox:
    """Open an inbox.

    Args:
        url: sqlite:///FILE, whose folder is there, or postgresql://…
        make: make it where there is none.
        clock: tells when things happen.

    Raises:
        UsageError: the URL is none; there is something else; or nothing, and none is to be made.
        EnvironmentFault: a library is missing, or the database cannot be reached or written, or is newer.
    """
    return Inbox(Database(read_url(url, Path.cwd()), make=make), clock)


class Inbox:
    """Events that wait for a worker, are in work, done or set aside. For any number of threads and processes.

    Entries of one model are handed out in the order in which they came, one at a time: one that is put off holds up
    those behind it, one that is set aside does not. Of different models the oldest comes first.

    Args:
        database: where they are.
        clock: tells when they come and end.
    """

    def __init__(self, database: Database, clock: Clock = _now) -> None:
        self.place = database.place
        self._database = database
        self._clock = clock
        self._together = Together(self._take_all)

    def take(self, registry: str, delivery: str, events: Iterable[Event]) -> bool:
        """Keep what a delivery tells; durable when this returns, and all of it or nothing.

        Returns:
            False where the delivery is known already, and nothing was changed.

        Raises:
            EnvironmentFault: it was not kept, or nobody knows: have it delivered again.
        """
        return self._together(Delivery(registry, key_of(delivery), tuple(events)))

    def claim(self, worker: str, now: datetime, lease_seconds: float) -> Entry | None:
        """Give a worker the oldest entry that is due; None where there is none.

        It is the worker's until it says what came of it. When its lease has run out before, others get it, too.
        """
        lease = {
            "worker": plain(worker),
            "lease": uuid.uuid4().hex,
            "now": now.timestamp(),
            "lease_until": (now + timedelta(seconds=lease_seconds)).timestamp(),
        }
        while True:
            with self._database.writing() as connection:
                run = _runner(connection)
                find = sql.FIND_LANE + sql.PASS_OVER_LOCKED[self._database.kind]
                lane = run(find, now=lease["now"]).scalar()
                if lane is None:
                    return None
                # The lane is locked now; others may have had it since it was found.
                row = run(sql.CLAIM, lane=lane, **lease).mappings().one_or_none()
                if row is None:
                    continue
                try:
                    return entry_of(row)
                except ValidationError:
                    reason = "cannot be read: changed by hand, or written by another plansmith"
                    given = {"id": row["id"], "lease": lease["lease"], "now": lease["now"]}
                    run(sql.SET_ASIDE, **given, reason=reason)

    def finish(self, entry: Entry, runs: Sequence[StartedRun]) -> bool:
        """An entry is done: it became these runs, or needs none.

        Returns:
            False where another worker has had it since its lease ran out, and nothing was changed.
        """
        written = written_runs(runs)
        return self._release(sql.FINISH, entry, runs=written)

    def postpone(self, entry: Entry, reason: str, next_at: datetime) -> bool:
        """Have an entry tried again, not before a time; as `finish` otherwise."""
        told = plain(reason)
        return self._release(sql.POSTPONE, entry, reason=told, next_try=next_at.timestamp())

    def set_aside(self, entry: Entry, reason: str) -> bool:
        """Leave an entry for a person to decide; as `finish` otherwise."""
        return self._release(sql.SET_ASIDE, entry, reason=plain(reason))

    def retry(self, *ids: int) -> tuple[int, ...]:
        """Have entries that wait or were set aside tried at once, as if they were new; those that were."""
        return self._each(sql.RETRY, ids)

    def drop(self, *ids: int) -> tuple[int, ...]:
        """Forget entries that are not in work; those that were. Their deliveries stay known."""
        return self._each(sql.DROP, ids)

    def entries(
        self, *, state: State | None = None, registry: str | None = None, limit: int = 100
    ) -> tuple[Entry, ...]:
        """The newest entries, newest first.

        Raises:
            EnvironmentFault: one cannot be read.
        """
        statement = sql.list_entries(by_state=state is not None, by_registry=registry is not None)
        given = {"state": state, "registry": registry, "limit": limit}
        named = {name: value for name, value in given.items() if value is not None}
        with self._database.reading() as connection:
            rows = _runner(connection)(statement, **named).mappings().all()
        return tuple(map(self._listed, rows))

    def entry(self, number: int) -> Entry | None:
        """One entry; None where there is none of this id."""
        with self._database.reading() as connection:
            row = _runner(connection)(sql.READ_ENTRY, id=number).mappings().one_or_none()
        return None if row is None else self._listed(row)

    def states(self, *ids: int) -> dict[int, State]:
        """The states of those of some entries that are there; one that a dead worker had waits."""
        now = self._clock().timestamp()
        with self._database.reading() as connection:
            run = _runner(connection)
            found = {number: run(sql.READ_STATE, id=number, now=now).scalar() for number in ids}
        return {number: state for number, state in found.items() if state is not None}

    def counts(self) -> dict[State, int]:
        """How many entries there are in each state."""
        with self._database.reading() as connection:
            found = {row.state: row.number for row in _runner(connection)(sql.COUNT_STATES)}
        return {state: found.get(state, 0) for state in STATES}

    def oldest_waiting(self, now: datetime) -> float | None:
        """For how many seconds the oldest entry that waits has been here; None where none waits."""
        with self._database.reading() as connection:
            received = _runner(connection)(sql.OLDEST_WAITING).scalar()
        return None if received is None else max(now.timestamp() - received, 0.0)

    def prune(self, before: datetime) -> int:
        """Forget entries that were done before a time, and deliveries of more than `DELIVERY_DAYS` ago.

        Returns:
            how many entries.
        """
        old = self._clock() - timedelta(days=DELIVERY_DAYS)
        with self._database.writing() as connection:
            run = _runner(connection)
            run(sql.PRUNE_DELIVERIES, before=old.timestamp())
            return int(run(sql.PRUNE_ENTRIES, before=before.timestamp()).rowcount)

    def check(self) -> None:
        """See that deliveries could be kept now.

        Raises:
            EnvironmentFault: they could not.
        """
        with self._database.writing() as connection:
            _runner(connection)(sql.COUNT_STATES).all()

    def close(self) -> None:
        """Let go of the database."""
        self._database.close()

    def _take_all(self, deliveries: Sequence[Delivery]) -> list[bool]:
        """Keep several deliveries in one transaction, so that one flush to the disk does for all."""
        received = self._clock().timestamp()
        # In the same order everywhere: receivers that wait for each other's rows do so in a line and not in a ring.
        order = sorted(range(len(deliveries)), key=lambda n: (deliveries[n].registry, deliveries[n].delivery))
        new = [False] * len(deliveries)
        with self._database.writing() as connection:
            run = _runner(connection)
            for n in order:
                one = deliveries[n]
                told = run(sql.ADD_DELIVERY, registry=one.registry, delivery=one.delivery, received=received)
                new[n] = told.rowcount == 1
            rows = [row_of(one, event, received) for n, one in enumerate(deliveries) if new[n] for event in one.events]
            for lane in sorted({row["lane"] for row in rows}):
                run(sql.ADD_LANE, lane=lane)
            for row in rows:
                run(sql.ADD_ENTRY, **row)
        return new

    def _release(self, statement: str, entry: Entry, **values: Any) -> bool:
        now = self._clock().timestamp()
        with self._database.writing() as connection:
            done = _runner(connection)(statement, id=entry.id, lease=entry.lease, now=now, **values)
            return bool(done.rowcount == 1)

    def _each(self, statement: str, ids: tuple[int, ...]) -> tuple[int, ...]:
        now = self._clock().timestamp()
        with self._database.writing() as connection:
            run = _runner(connection)
            changed = Counter({number: run(statement, id=number, now=now).rowcount for number in sorted(set(ids))})
        return tuple(number for number in dict.fromkeys(ids) if changed[number])

    def _listed(self, row: Mapping[str, Any]) -> Entry:
        try:
            return entry_of(row)
        except ValidationError as error:
            raise EnvironmentFault(
                f"entry {row['id']} of {self.place} cannot be read: changed by hand, or written by another plansmith",
                remedy=f"plansmith triggers inbox drop {row['id']} --yes, or use the plansmith that wrote it",
            ) from error


def _runner(connection: Any) -> Callable[..., Any]:
    """Runs statements on a connection, with their values by name."""
    import sqlalchemy as sa

    def run(statement: str, **values: Any) -> Any:
        return connection.execute(sa.text(statement), values)

    return run
