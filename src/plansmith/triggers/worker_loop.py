"""Worker loop: processes work step by step, with pauses after failures and logging."""

from __future__ import annotations

import json
import logging
import random
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from plansmith.errors import EnvironmentFault, PlansmithError, first_line, in_one_line
from plansmith.triggers.inbox.entry import InboxEntry
from plansmith.triggers.inbox.inbox import Clock, Inbox

LOG = logging.getLogger("plansmith.builds")
"""A line of JSON for each entry of the inbox that was worked on, as its whole message."""

LEASE_SECONDS = 60.0
"""For how long something is a worker's, renewed before each question: longer than one may take. What a killed worker
had in work is taken up by another one after it."""

_IDLE_SECONDS = 1.0
_FIRST_PAUSE_SECONDS = 2.0
_LONGEST_PAUSE_SECONDS = 300.0
_FIRST_LOOK_SECONDS = 5.0
_LAST_LOOK_SECONDS = 120.0
_SHARE = 0.1

Draw = Callable[[], float]
"""A number from 0 to 1."""

Count = Callable[[str, str], None]
"""Counts what came of something: what it was, and the outcome, each one word of few."""


def _now() -> datetime:
    return datetime.now(UTC)


def _count_nowhere(event: str, outcome: str) -> None:
    """Discard the count: no metrics are configured."""


@dataclass(frozen=True)
class WorkerContext:
    """Context of an inbox worker, one of any number in this and other processes.

    Args:
        name: shown beside what it has in work.
        inbox: what it works off.
        retries: how often a bug is tried again before what met it is set aside.
        clock: the time.
        draw: a number from 0 to 1.
        count: counts what came of what it worked on.
    """

    name: str
    inbox: Inbox
    retries: int
    clock: Clock = _now
    draw: Draw = random.random
    count: Count = _count_nowhere

    def fail(
        self,
        error: Exception,
        event: str,
        entry: InboxEntry,
        attempts: int,
        *,
        put_off: Callable[[str, datetime], bool],
        set_aside: Callable[[str], bool],
    ) -> None:
        """Schedule a retry of a failed entry or set it aside; log it if the lease was still held.

        Args:
            error: what went wrong.
            event: with what of the entry.
            entry: which.
            attempts: how often it was tried, this time included.
            put_off: for this reason, until then; as `Inbox.postpone`.
            set_aside: for this reason; as `Inbox.set_aside`.
        """
        more = traceback_field(error)
        if why := give_up_reason(error, attempts, self.retries):
            if set_aside(why):
                self.log_entry(entry, logging.ERROR, event, "set-aside", reason=why, **more)
            return
        reason, after = error_text(error), pause_seconds(attempts, self.draw())
        if put_off(reason, self.clock() + timedelta(seconds=after)):
            self.log_entry(entry, logging.WARNING, event, "put-off", reason=reason, seconds=round(after, 1), **more)

    def log_entry(self, entry: InboxEntry, level: int, event: str, outcome: str, **more: object) -> None:
        """Log an entry as a JSON line, and count it."""
        self.count(event, outcome)
        log_event(
            level, event, entry=entry.id, registry=entry.registry, outcome=outcome, what=entry.event.label, **more
        )


def pause_seconds(attempts: int, drawn: float) -> float:
    """Return the retry backoff after so many attempts: doubled each time, up to five minutes.

    Args:
        attempts: at least 1.
        drawn: from 0 to 1; takes up to a half off, so that what failed together is not tried again together.
    """
    doublings = min(attempts - 1, 30)
    return float(min(_FIRST_PAUSE_SECONDS * 2**doublings, _LONGEST_PAUSE_SECONDS) * (1 - drawn / 2))


def recheck_seconds(took_seconds: float) -> float:
    """Return the interval until unfinished runs are checked again: a tenth of their duration so far."""
    return min(max(took_seconds * _SHARE, _FIRST_LOOK_SECONDS), _LAST_LOOK_SECONDS)


@contextmanager
def renewed(renew: Callable[[], object], seconds: float = LEASE_SECONDS / 3) -> Iterator[None]:
    """Keep a lease renewed during a block that takes longer than the lease.

    Args:
        renew: renews it; what it raises is left to those who use the lease next.
        seconds: between two times.
    """
    done = threading.Event()

    def keep() -> None:
        while not done.wait(seconds):
            with suppress(PlansmithError):
                renew()

    keeper = threading.Thread(target=keep, name="lease", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        done.set()
        keeper.join()


def run_until_stopped(step: Callable[[], bool], stop: threading.Event, draw: Draw) -> None:
    """Run steps until stopped; the one in progress is finished.

    Args:
        step: False where there was nothing to do. What it raises is said, and it is taken again later.
        stop: tells when.
        draw: for pauses.
    """
    failures = 0
    while not stop.is_set():
        try:
            worked = step()
        except Exception as error:  # noqa: BLE001 - whatever it is, others wait; the lease gives back what was in work
            failures += 1
            log_event(logging.ERROR, "inbox", reason=error_text(error), **traceback_field(error))
            stop.wait(min(pause_seconds(failures, draw()), LEASE_SECONDS))
            continue
        failures = 0
        if not worked:
            stop.wait(_IDLE_SECONDS)


def give_up_reason(error: Exception, attempts: int, retries: int) -> str:
    """Return in one line why a failure is not retried but left to the user; empty if it is retried.

    What is away or not set up is waited for, however long that takes. A bug is tried again a few times, and seen in the
    log.

    Args:
        error: what went wrong.
        attempts: how often it was tried, this time included.
        retries: how often a bug is tried again.
    """
    if not isinstance(error, PlansmithError):
        return f"given up after {attempts} attempts: {error_text(error)}" if attempts > retries else ""
    return "" if isinstance(error, EnvironmentFault) or error.transient else error_text(error)


def traceback_field(error: Exception) -> dict[str, str]:
    """Return a log field with the traceback of a bug; empty for an expected error."""
    if isinstance(error, PlansmithError):
        return {}
    return {"traceback": "".join(traceback.format_exception(error))}


def error_text(error: Exception) -> str:
    """Format an error and its remedy in one line."""
    if not isinstance(error, PlansmithError):
        return f"{type(error).__name__}: {first_line(error)}"
    text = " ".join(error.message.split()) if len(error.message.splitlines()) < 4 else in_one_line(error.message)
    return f"{text}; {' '.join(error.remedy.split())}" if error.remedy else text


def log_event(level: int, event: str, **more: object) -> None:
    """Log an event as a JSON line."""
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    LOG.log(level, json.dumps({"event": event, "time": time, **more}))
