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
from plansmith.triggers.inbox.database import Database, runner
from plansmith.triggers.inbox.entry import STATES, InboxEntry, StartedRun, State
from plansmith.triggers.inbox.location import read_url
from plansmith.triggers.inbox.rows import Delivery, entry_of, key_of, place_of, plain, row_of, written_runs
from plansmith.triggers.inbox.write_back_sql import FORGET, FORGET_WITHOUT_ENTRY, WANT
from plansmith.triggers.inbox.write_backs import WriteBacks
from plansmith.triggers.registries.event import Event

Clock = Callable[[], datetime]

_KNOWN_FOR = timedelta(days=7)
"""For how long a delivery is known again at least: the widest window of a registry is a day, before and after now."""


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
        """Keep what a delivery tells; durable when this returns, and all of it or nothing.

        Returns:
            False where the delivery is known already, and nothing was changed.

        Raises:
            EnvironmentFault: it was not kept, or nobody knows: have it delivered again.
        """
        return self.take_all([Delivery(registry, key_of(delivery), tuple(events))])[0]

    def take_all(self, deliveries: Sequence[Delivery]) -> list[bool]:
        """As `take`, for several deliveries in one transaction: one flush to the disk does for all.

        Of one that is known and recurs is kept what tells of something else than the newest of its topic does.
        """
        received = self._clock().timestamp()
        # In the same order everywhere: receivers that wait for each other's rows do so in a line and not in a ring.
        order = sorted(range(len(deliveries)), key=lambda n: (deliveries[n].registry, deliveries[n].delivery))
        new = [False] * len(deliveries)
        with self._database.adding() as add:
            for n in order:
                one = deliveries[n]
                known_as = {"registry": one.registry, "delivery": one.delivery, "received": received}
                new[n] = add(sql.ADD_DELIVERY, **known_as, expires=int(one.expires)) == 1
                if one.recurs and not new[n]:
                    add(sql.TOUCH_DELIVERY, **known_as)
            rows = [row_of(one, event, received) for n, one in enumerate(deliveries) if new[n] for event in one.events]
            for lane in sorted({row["lane"] for row in rows}):
                add(sql.ADD_LANE, lane=lane)
            for row in rows:
                add(sql.ADD_ENTRY, **row)
            for n, one in enumerate(deliveries):
                if one.recurs and not new[n]:
                    changes = [row_of(one, event, received) for event in one.events]
                    new[n] = sum(add(sql.ADD_CHANGE, **row) for row in changes) > 0
        return new

    def claim(self, worker: str, now: datetime, lease_seconds: float) -> InboxEntry | None:
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
                    given = {"id": row["id"], "lease": lease["lease"], "now": lease["now"], "started": row["started"]}
                    run(sql.SET_ASIDE, **given, reason=reason)

    def renew(self, entry: InboxEntry, now: datetime, lease_seconds: float) -> bool:
        """Have an entry for longer; as `finish` otherwise."""
        until = (now + timedelta(seconds=lease_seconds)).timestamp()
        return self._release(sql.RENEW, entry, lease_until=until)

    def finish(self, entry: InboxEntry, runs: Sequence[StartedRun], *, tell: bool = False, reason: str = "") -> bool:
        """An entry is done: it became these runs, or needs none.

        Args:
            entry: that was claimed.
            runs: that it became.
            tell: the registry is to be told what comes of them.
            reason: why it needs none, where a rule wants it.

        Returns:
            False where another worker has had it since its lease ran out, and nothing was changed.
        """
        given = {"runs": written_runs(runs), "reason": plain(reason)}
        return self._release(sql.FINISH, entry, *([WANT] if tell else []), **given)

    def postpone(
        self,
        entry: InboxEntry,
        reason: str,
        next_at: datetime,
        *,
        failed: bool = True,
        started: Sequence[StartedRun] = (),
    ) -> bool:
        """Have an entry tried again, not before a time; as `finish` otherwise.

        Args:
            entry: that was claimed.
            reason: why, or what is waited for.
            next_at: not before then.
            failed: it counts as an attempt.
            started: runs that it has become by now; without those that were known of it already.
        """
        known = written_runs(entry.with_started(started))
        given = {"reason": plain(reason), "next_try": next_at.timestamp(), "uncounted": int(not failed)}
        return self._release(sql.POSTPONE, entry, **given, started=known)

    def set_aside(self, entry: InboxEntry, reason: str, *, started: Sequence[StartedRun] = ()) -> bool:
        """Leave an entry for a person to decide; as `finish` and `postpone` otherwise."""
        known = written_runs(entry.with_started(started))
        return self._release(sql.SET_ASIDE, entry, reason=plain(reason), started=known)

    def retry(self, *ids: int) -> tuple[int, ...]:
        """Have entries that are not in work tried at once, as if they were new; those that were.

        One that has become runs keeps them until it is done again: whoever works on it knows by them that it is asked
        for once more, and what came of it before.
        """
        return self._each(sql.RETRY, ids)

    def drop(self, *ids: int) -> tuple[int, ...]:
        """Forget entries that are not in work; those that were. Their deliveries stay known."""
        return self._each(sql.DROP, ids)

    def entries(
        self, *, state: State | None = None, registry: str | None = None, not_written: bool = False, limit: int = 100
    ) -> tuple[InboxEntry, ...]:
        """The newest entries, newest first.

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
        given = {"state": state, "registry": registry, "limit": limit}
        named = {name: value for name, value in given.items() if value is not None}
        with self._database.reading() as connection:
            rows = runner(connection)(statement, **named).mappings().all()
        return tuple(map(self._listed, rows))

    def entry(self, number: int) -> InboxEntry | None:
        """One entry; None where there is none of this id."""
        with self._database.reading() as connection:
            row = runner(connection)(sql.READ_ENTRY, id=number).mappings().one_or_none()
        return None if row is None else self._listed(row)

    def youngest(self, event: Event) -> tuple[int, str] | None:
        """The newest entry that tells of the same alias, branch, …: its id and the key of its content.

        Args:
            event: of which the newest of a topic counts.
        """
        with self._database.reading() as connection:
            row = runner(connection)(sql.YOUNGEST, **place_of(event)).one_or_none()
        return None if row is None else (row.id, row.content_key)

    def newest(self) -> int:
        """The id of the newest entry, 0 where there is none: those that come from now on have higher ones."""
        with self._database.reading() as connection:
            return int(runner(connection)(sql.NEWEST).scalar())

    def states(self, *ids: int) -> dict[int, State]:
        """The states of those of some entries that are there; one that a dead worker had waits."""
        now = self._clock().timestamp()
        with self._database.reading() as connection:
            run = runner(connection)
            found = {number: run(sql.READ_STATE, id=number, now=now).scalar() for number in ids}
        return {number: state for number, state in found.items() if state is not None}

    def counts(self) -> dict[State, int]:
        """How many entries there are in each state."""
        with self._database.reading() as connection:
            found = {row.state: row.number for row in runner(connection)(sql.COUNT_STATES)}
        return {state: found.get(state, 0) for state in STATES}

    def oldest_waiting(self, now: datetime) -> float | None:
        """For how many seconds the oldest entry that waits has been here; None where none waits."""
        with self._database.reading() as connection:
            received = runner(connection)(sql.OLDEST_WAITING).scalar()
        return None if received is None else max(now.timestamp() - received, 0.0)

    def prune(self, before: datetime) -> int:
        """Forget entries that were done before a time, and told where they are to be; without what counts now.

        Deliveries stay known that may come again: a watch that starts anew tells of all states that it finds. Those
        that are signed with a time are forgotten, too, once they are from before that time and too old to be taken.

        Returns:
            how many entries.
        """
        expired = min(before, self._clock() - _KNOWN_FOR)
        with self._database.writing() as connection:
            run = runner(connection)
            gone = int(run(sql.PRUNE, before=before.timestamp()).rowcount)
            run(FORGET_WITHOUT_ENTRY)
            run(sql.PRUNE_DELIVERIES, before=expired.timestamp())
            return gone

    def count_old(self, before: datetime) -> int:
        """How many entries `prune` would forget."""
        with self._database.reading() as connection:
            return int(runner(connection)(sql.COUNT_OLD, before=before.timestamp()).scalar())

    def check(self) -> None:
        """See that deliveries could be kept now.

        Raises:
            EnvironmentFault: they could not.
        """
        with self._database.writing() as connection:
            runner(connection)(sql.COUNT_STATES).all()

    def close(self) -> None:
        """Let go of the database."""
        self._database.close()

    def _release(self, statement: str, entry: InboxEntry, *then: str, **values: Any) -> bool:
        now = self._clock().timestamp()
        with self._database.writing() as connection:
            run = runner(connection)
            is_ours = bool(run(statement, id=entry.id, lease=entry.lease, now=now, **values).rowcount == 1)
            for one in then if is_ours else ():
                run(one, id=entry.id, now=now)
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
