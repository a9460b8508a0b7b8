"""Durable inbox: every acknowledged delivery, until it became a run. A reported change is on disk."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from plansmith.errors import EnvironmentFault
from plansmith.triggers.inbox import sql
from plansmith.triggers.inbox import write_back_sql as statements
from plansmith.triggers.inbox.database import Database, runner
from plansmith.triggers.inbox.entry import (
    STATES,
    Delivery,
    InboxEntry,
    Sibling,
    StartedRun,
    State,
    WriteBack,
    WriteBackState,
    entry_of,
    key_of,
    place_of,
    plain,
    read_runs,
    row_of,
    write_back_of,
    written_runs,
)
from plansmith.triggers.inbox.location import read_url
from plansmith.triggers.inbox.sql import PASS_OVER_LOCKED
from plansmith.triggers.inbox.write_back_sql import FORGET, FORGET_WITHOUT_ENTRY, WANT
from plansmith.triggers.registries.delivery import Event

Clock = Callable[[], datetime]
_KNOWN_FOR = timedelta(days=7)
"""For how long a delivery is known again at least: the widest window of a registry is a day, before and after now."""


class WriteBacks:
    """Write-back queue: entries whose results are due to registries. Safe for many threads and processes.

    Those of one model are handed out one at a time.

    Args:
        database: of the inbox.
        clock: tells when they are told.
    """

    def __init__(self, database: Database, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._clock = clock

    def claim(self, worker: str, now: datetime, lease_seconds: float) -> WriteBack | None:
        """Lease the longest-waiting write-back to a worker; None if none is due. Otherwise as `Inbox.claim`."""
        lease = {
            "worker": plain(worker),
            "lease": uuid.uuid4().hex,
            "now": now.timestamp(),
            "lease_until": (now + timedelta(seconds=lease_seconds)).timestamp(),
        }
        while True:
            with self._database.writing() as connection:
                run = runner(connection)
                number = run(statements.FIND + PASS_OVER_LOCKED[self._database.kind], now=lease["now"]).scalar()
                if number is None:
                    return None
                # The lane is locked now; others may have had it since it was found.
                row = run(statements.CLAIM, entry=number, **lease).mappings().one_or_none()
                if row is not None:
                    return write_back_of(row)

    def renew(self, write_back: WriteBack, now: datetime, lease_seconds: float) -> bool:
        """Renew the lease of a write-back; False, with nothing changed, if another or no worker holds it now."""
        return self._release(
            statements.RENEW, write_back, lease_until=(now + timedelta(seconds=lease_seconds)).timestamp()
        )

    def finish(self, write_back: WriteBack, verdict: str) -> bool:
        """Mark a write-back as done; otherwise as `renew`."""
        return self._release(statements.TOLD, write_back, verdict=verdict)

    def postpone(self, write_back: WriteBack, reason: str, next_at: datetime, *, failed: bool) -> bool:
        """Schedule a retry of a write-back, not before a time; otherwise as `renew`.

        Args:
            write_back: that was claimed.
            reason: why, or what is waited for.
            next_at: not before then.
            failed: that is counted.
        """
        return self._release(
            statements.POSTPONE, write_back, reason=plain(reason), next_try=next_at.timestamp(), failures=int(failed)
        )

    def set_aside(self, write_back: WriteBack, reason: str) -> bool:
        """Set a write-back aside for the user to decide; otherwise as `renew`."""
        return self._release(statements.SET_ASIDE, write_back, reason=plain(reason))

    def unwanted(self, write_back: WriteBack) -> bool:
        """Cancel a write-back; otherwise as `renew`."""
        return self._release(statements.UNWANTED, write_back)

    def again(self, *ids: int) -> tuple[int, ...]:
        """Requeue write-backs of entries, or queue them for the first time; only for done entries that have runs."""
        now = self._clock().timestamp()
        with self._database.writing() as connection:
            run = runner(connection)
            changed = {number for number in sorted(set(ids)) if run(statements.WANT, id=number, now=now).rowcount}
        return tuple(number for number in dict.fromkeys(ids) if number in changed)

    def of(self, *ids: int) -> dict[int, WriteBack]:
        """Return the write-backs by entry; entries without one are omitted."""
        with self._database.reading() as connection:
            run = runner(connection)
            rows = [run(statements.READ, id=number).mappings().one_or_none() for number in ids]
        return {row["entry"]: write_back_of(row) for row in rows if row is not None}

    def counts(self) -> dict[WriteBackState, int]:
        """Return the number of write-backs in each state."""
        with self._database.reading() as connection:
            numbers = {row.state: row.number for row in runner(connection)(statements.COUNT_STATES)}
        return {state: numbers.get(state, 0) for state in get_args(WriteBackState)}

    def of_version(self, entry: InboxEntry) -> tuple[Sibling, ...]:
        """Return all entries with the same content whose runs are or will be written back, oldest first."""
        with self._database.reading() as connection:
            rows = runner(connection)(statements.OF_VERSION, content_key=entry.content_key).mappings().all()
        return tuple(
            Sibling(row["id"], read_runs(row["runs"]), None if row["entry"] is None else write_back_of(row))
            for row in rows
        )

    def _release(self, statement: str, write_back: WriteBack, **values: Any) -> bool:
        now = self._clock().timestamp()
        with self._database.writing() as connection:
            done = runner(connection)(statement, id=write_back.entry, lease=write_back.lease, now=now, **values)
            return bool(done.rowcount == 1)


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
    """Durable inbox of events: waiting, in progress, done or set aside. Safe for many threads and processes.

    Entries of one model are handed out in the order in which they came, one at a time: one that is put off holds up
    those behind it, one that is set aside does not. Of different models the oldest comes first.

    Args:
        database: where they are.
        clock: tells when they come and end.

    Attributes:
        place: the database as it may be shown.
        write_backs: what registries are to be told of entries that are done.
    """

    def __init__(self, database: Database, clock: Clock = _now) -> None:
        self.place = database.place
        self.write_backs = WriteBacks(database, clock)
        self._database = database
        self._clock = clock

    def take(self, registry: str, delivery: str, events: Iterable[Event]) -> bool:
        """Store the events of a delivery; durable on return, and atomic.

        Returns:
            False where the delivery is known already, and nothing was changed.

        Raises:
            EnvironmentFault: it was not kept, or nobody knows: have it delivered again.
        """
        return self.take_all([Delivery(registry, key_of(delivery), tuple(events))])[0]

    def take_all(self, deliveries: Sequence[Delivery]) -> list[bool]:
        """As `take`, for several deliveries in one transaction, with one flush to the disk.

        Of one that is known and recurs is kept what tells of something else than the newest of its topic does.
        """
        received = self._clock().timestamp()
        # In the same order everywhere: receivers that wait for each other's rows do so in a line and not in a ring.
        order = sorted(range(len(deliveries)), key=lambda n: (deliveries[n].registry, deliveries[n].delivery))
        new = [False] * len(deliveries)
        with self._database.adding() as add:
            for n in order:
                item = deliveries[n]
                known_as = {"registry": item.registry, "delivery": item.delivery, "received": received}
                new[n] = add(sql.ADD_DELIVERY, **known_as, expires=int(item.expires)) == 1
                if item.recurs and not new[n]:
                    add(sql.TOUCH_DELIVERY, **known_as)
            rows = [
                row_of(item, event, received) for n, item in enumerate(deliveries) if new[n] for event in item.events
            ]
            for lane in sorted({row["lane"] for row in rows}):
                add(sql.ADD_LANE, lane=lane)
            for row in rows:
                add(sql.ADD_ENTRY, **row)
            for n, item in enumerate(deliveries):
                if item.recurs and not new[n]:
                    changes = [row_of(item, event, received) for event in item.events]
                    new[n] = sum(add(sql.ADD_CHANGE, **row) for row in changes) > 0
        return new

    def claim(self, worker: str, now: datetime, lease_seconds: float) -> InboxEntry | None:
        """Lease the oldest entry that is due to a worker; None if there is none.

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
                run = runner(connection)
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
                    fields = {"id": row["id"], "lease": lease["lease"], "now": lease["now"], "started": row["started"]}
                    run(sql.SET_ASIDE, **fields, reason=reason)

    def renew(self, entry: InboxEntry, now: datetime, lease_seconds: float) -> bool:
        """Renew the lease of an entry; otherwise as `finish`."""
        until = (now + timedelta(seconds=lease_seconds)).timestamp()
        return self._release(sql.RENEW, entry, lease_until=until)

    def finish(self, entry: InboxEntry, runs: Sequence[StartedRun], *, tell: bool = False, reason: str = "") -> bool:
        """Mark an entry as done, with its runs, if any.

        Args:
            entry: that was claimed.
            runs: that it became.
            tell: the registry is to be told what comes of them.
            reason: why it needs none, where a rule wants it.

        Returns:
            False where another worker has had it since its lease ran out, and nothing was changed.
        """
        fields = {"runs": written_runs(runs), "reason": plain(reason)}
        return self._release(sql.FINISH, entry, *([WANT] if tell else []), **fields)

    def postpone(
        self,
        entry: InboxEntry,
        reason: str,
        next_at: datetime,
        *,
        failed: bool = True,
        started: Sequence[StartedRun] = (),
    ) -> bool:
        """Schedule a retry of an entry, not before a time; otherwise as `finish`.

        Args:
            entry: that was claimed.
            reason: why, or what is waited for.
            next_at: not before then.
            failed: it counts as an attempt.
            started: runs that it has become by now; without those that were known of it already.
        """
        started_runs = written_runs(entry.with_started(started))
        fields = {"reason": plain(reason), "next_try": next_at.timestamp(), "uncounted": int(not failed)}
        return self._release(sql.POSTPONE, entry, **fields, started=started_runs)

    def set_aside(self, entry: InboxEntry, reason: str, *, started: Sequence[StartedRun] = ()) -> bool:
        """Set an entry aside for the user to decide; otherwise as `finish` and `postpone`."""
        started_runs = written_runs(entry.with_started(started))
        return self._release(sql.SET_ASIDE, entry, reason=plain(reason), started=started_runs)

    def retry(self, *ids: int) -> tuple[int, ...]:
        """Requeue entries that are not in progress, as if new; return those requeued.

        One that has become runs keeps them until it is done again: whoever works on it knows by them that it is asked
        for once more, and what came of it before.
        """
        return self._each(sql.RETRY, ids)

    def drop(self, *ids: int) -> tuple[int, ...]:
        """Delete entries that are not in progress, and return them. Their deliveries stay known."""
        return self._each(sql.DROP, ids)

    def entries(
        self, *, state: State | None = None, registry: str | None = None, not_written: bool = False, limit: int = 100
    ) -> tuple[InboxEntry, ...]:
        """Return the newest entries, newest first.

        Args:
            state: only those in it.
            registry: only those of it.
            not_written: only those whose registry could not be told what came of them.
            limit: so many at most.

        Raises:
            EnvironmentFault: one cannot be read.
        """
        which = {"by_state": state is not None, "by_registry": registry is not None, "not_written": not_written}
        statement = sql.list_entries(**which)
        filters = {"state": state, "registry": registry, "limit": limit}
        named = {name: value for name, value in filters.items() if value is not None}
        with self._database.reading() as connection:
            rows = runner(connection)(statement, **named).mappings().all()
        return tuple(map(self._listed, rows))

    def entry(self, number: int) -> InboxEntry | None:
        """Return one entry; None if the ID is unknown."""
        with self._database.reading() as connection:
            row = runner(connection)(sql.READ_ENTRY, id=number).mappings().one_or_none()
        return None if row is None else self._listed(row)

    def youngest(self, event: Event) -> tuple[int, str] | None:
        """Return the ID and content key of the newest entry for the same alias, branch, etc.

        The key is empty where its registry said otherwise, and nothing was built.

        Args:
            event: of which the newest of a topic counts.
        """
        with self._database.reading() as connection:
            row = runner(connection)(sql.YOUNGEST, **place_of(event)).one_or_none()
        return None if row is None else (row.id, row.content_key)

    def newest(self) -> int:
        """Return the ID of the newest entry, 0 if there is none; later entries have higher IDs."""
        with self._database.reading() as connection:
            return int(runner(connection)(sql.NEWEST).scalar())

    def states(self, *ids: int) -> dict[int, State]:
        """Return the states of the existing ones of some entries; one leased by a dead worker counts as waiting."""
        now = self._clock().timestamp()
        with self._database.reading() as connection:
            run = runner(connection)
            states_by_id = {number: run(sql.READ_STATE, id=number, now=now).scalar() for number in ids}
        return {number: state for number, state in states_by_id.items() if state is not None}

    def counts(self) -> dict[State, int]:
        """Return the number of entries in each state."""
        with self._database.reading() as connection:
            numbers = {row.state: row.number for row in runner(connection)(sql.COUNT_STATES)}
        return {state: numbers.get(state, 0) for state in STATES}

    def oldest_waiting(self, now: datetime) -> float | None:
        """Return the age of the oldest waiting entry in seconds; None if none waits."""
        with self._database.reading() as connection:
            received = runner(connection)(sql.OLDEST_WAITING).scalar()
        return None if received is None else max(now.timestamp() - received, 0.0)

    def prune(self, before: datetime) -> int:
        """Delete entries done, and written back where required, before a time; keeps those that still matter.

        Deliveries stay known that may come again: a watch that starts anew tells of all states that it finds. Those
        that are signed with a time are forgotten, too, once they are from before that time and too old to be taken.

        Returns:
            how many entries.
        """
        expired = min(before, self._clock() - _KNOWN_FOR)
        with self._database.writing() as connection:
            run = runner(connection)
            count = int(run(sql.PRUNE, before=before.timestamp()).rowcount)
            run(FORGET_WITHOUT_ENTRY)
            run(sql.PRUNE_DELIVERIES, before=expired.timestamp())
            return count

    def count_old(self, before: datetime) -> int:
        """Return the number of entries that `prune` would delete."""
        with self._database.reading() as connection:
            return int(runner(connection)(sql.COUNT_OLD, before=before.timestamp()).scalar())

    def check(self) -> None:
        """Check that deliveries could be stored now.

        Raises:
            EnvironmentFault: they could not.
        """
        with self._database.writing() as connection:
            runner(connection)(sql.COUNT_STATES).all()

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def _release(self, statement: str, entry: InboxEntry, *then: str, **values: Any) -> bool:
        now = self._clock().timestamp()
        with self._database.writing() as connection:
            run = runner(connection)
            is_ours = bool(run(statement, id=entry.id, lease=entry.lease, now=now, **values).rowcount == 1)
            for next_statement in then if is_ours else ():
                run(next_statement, id=entry.id, now=now)
            return is_ours

    def _each(self, statement: str, ids: tuple[int, ...]) -> tuple[int, ...]:
        now = self._clock().timestamp()
        with self._database.writing() as connection:
            run = runner(connection)
            changed = Counter({number: run(statement, id=number, now=now).rowcount for number in sorted(set(ids))})
            for number in +changed:  # what came of them is told anew when they are done again
                run(FORGET, id=number)
        return tuple(number for number in dict.fromkeys(ids) if changed[number])

    def _listed(self, row: Mapping[str, Any]) -> InboxEntry:
        try:
            return entry_of(row)
        except ValidationError as error:
            raise EnvironmentFault(
                f"entry {row['id']} of {self.place} cannot be read: changed by hand, or written by another plansmith",
                remedy=f"plansmith triggers inbox drop {row['id']} --yes, or use the plansmith that wrote it",
            ) from error
