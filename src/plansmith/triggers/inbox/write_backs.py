"""What registries are still to be told of entries that became runs; kept where those are, and as durably."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, get_args

from plansmith.triggers.inbox import write_back_sql as statements
from plansmith.triggers.inbox.database import Database, runner
from plansmith.triggers.inbox.entry import InboxEntry, Sibling, WriteBack, WriteBackState
from plansmith.triggers.inbox.rows import plain, read_runs, write_back_of
from plansmith.triggers.inbox.sql import PASS_OVER_LOCKED


class WriteBacks:
    """Entries of an inbox whose registries are to be told. For any number of threads and processes.

    Those of one model are handed out one at a time.

    Args:
        database: of the inbox.
        clock: tells when they are told.
    """

    def __init__(self, database: Database, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._clock = clock

    def claim(self, worker: str, now: datetime, lease_seconds: float) -> WriteBack | None:
        """Give a teller what has waited longest; None where nothing is due. As `Inbox.claim` otherwise."""
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

    def renew(self, one: WriteBack, now: datetime, lease_seconds: float) -> bool:
        """Have one for longer; False where it is another's now, or nobody's, and nothing was changed."""
        return self._release(statements.RENEW, one, lease_until=(now + timedelta(seconds=lease_seconds)).timestamp())

    def finish(self, one: WriteBack, verdict: str) -> bool:
        """The registry knows it; as `renew` otherwise."""
        return self._release(statements.TOLD, one, verdict=verdict)

    def postpone(self, one: WriteBack, reason: str, next_at: datetime, *, failed: bool) -> bool:
        """Have one tried again, not before a time; as `renew` otherwise.

        Args:
            one: that was claimed.
            reason: why, or what is waited for.
            next_at: not before then.
            failed: that is counted.
        """
        return self._release(
            statements.POSTPONE, one, reason=plain(reason), next_try=next_at.timestamp(), failures=int(failed)
        )

    def set_aside(self, one: WriteBack, reason: str) -> bool:
        """Leave one for a person to decide; as `renew` otherwise."""
        return self._release(statements.SET_ASIDE, one, reason=plain(reason))

    def unwanted(self, one: WriteBack) -> bool:
        """The registry is not told any more; as `renew` otherwise."""
        return self._release(statements.UNWANTED, one)

    def again(self, *ids: int) -> tuple[int, ...]:
        """Have what came of entries told once more, or for the first time; those that are done and became runs."""
        now = self._clock().timestamp()
        with self._database.writing() as connection:
            run = runner(connection)
            changed = {number for number in sorted(set(ids)) if run(statements.WANT, id=number, now=now).rowcount}
        return tuple(number for number in dict.fromkeys(ids) if number in changed)

    def of(self, *ids: int) -> dict[int, WriteBack]:
        """By entry, how far registries were told; without those of which nothing is to be told."""
        with self._database.reading() as connection:
            run = runner(connection)
            rows = [run(statements.READ, id=number).mappings().one_or_none() for number in ids]
        return {row["entry"]: write_back_of(row) for row in rows if row is not None}

    def counts(self) -> dict[WriteBackState, int]:
        """How many there are in each state."""
        with self._database.reading() as connection:
            found = {row.state: row.number for row in runner(connection)(statements.COUNT_STATES)}
        return {state: found.get(state, 0) for state in get_args(WriteBackState)}

    def of_version(self, entry: InboxEntry) -> tuple[Sibling, ...]:
        """All entries of the same content whose runs the registry is told of, or will be; the oldest first."""
        with self._database.reading() as connection:
            rows = runner(connection)(statements.OF_VERSION, content_key=entry.content_key).mappings().all()
        return tuple(
            Sibling(row["id"], read_runs(row["runs"]), None if row["entry"] is None else write_back_of(row))
            for row in rows
        )

    def _release(self, statement: str, one: WriteBack, **values: Any) -> bool:
        now = self._clock().timestamp()
        with self._database.writing() as connection:
            done = runner(connection)(statement, id=one.entry, lease=one.lease, now=now, **values)
            return bool(done.rowcount == 1)
