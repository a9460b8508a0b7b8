"""Pieces of work that one machine at a time does: leases in a store, renewed while the work lasts, free when it died.

A lease saves work and protects nothing: a holder that was suspended for longer than its lease is not stopped, and does
the same work as whoever took over. What it makes must be right whoever makes it, as the contents of a store are.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from plansmith.errors import PlansmithError
from plansmith.records.model import Record
from plansmith.stores.backend.documents import change, new_token
from plansmith.stores.backend.object_store import Objects
from plansmith.stores.layout import LEASES, lease_key

SECONDS = 60.0
"""How long a lease lasts after its holder was heard of last."""

_LONGEST_PAUSE_SECONDS = 3.0

Waiting = Callable[[str], None]
"""Told once that another holds a lease: who, in words. What it raises ends the attempt."""


class Lease(Record):
    """Who does a piece of work, and until when that holds by the store's clock, in seconds since 1970.

    `holder`: a token of whoever took it; empty once it was given back. `who`: the same for people.
    """

    holder: str
    who: str
    until: float
    token: str


class Hold:
    """A lease that is held.

    Args:
        objects: the store's.
        key: of the lease.
        seconds: how long it lasts after each renewal.
    """

    def __init__(self, objects: Objects, key: str, seconds: float) -> None:
        self._objects = objects
        self._key = key
        self._seconds = seconds
        self._holder = new_token()

    def prolong(self) -> None:
        """Take the lease, or keep it for another while.

        Raises:
            _Held: another has it.
        """
        change(self._objects, self._key, Lease, self._prolonged)

    def give_back(self) -> None:
        """Let others have it at once; where that fails, they have it when it expires."""
        with suppress(PlansmithError, OSError, _Held):
            change(self._objects, self._key, Lease, self._given_back)

    def _prolonged(self, old: Lease | None) -> Lease:
        now = self._objects.now()
        if old is not None and old.holder != self._holder and old.until > now:
            raise _Held(old.who)
        who = f"{socket.gethostname()}, process {os.getpid()}"
        return Lease(holder=self._holder, who=who, until=now + self._seconds, token=new_token())

    def _given_back(self, old: Lease | None) -> Lease:
        if old is None or old.holder != self._holder:
            raise _Held
        return old.model_copy(update={"holder": "", "until": 0.0, "token": new_token()})


class _Held(Exception):
    """Another holds the lease."""


@contextmanager
def leased(objects: Objects, name: str, seconds: float = SECONDS, waiting: Waiting = lambda _: None) -> Iterator[None]:
    """Hold a lease while something is done, renewed by a thread; waits for another's to be given back or to expire.

    Args:
        objects: the store's.
        name: of the piece of work, such as `compile/<key>`.
        seconds: how long after its holder's death others wait.
        waiting: told before this waits for another.

    Raises:
        RepositoryError: the store refuses it.
        EnvironmentFault: the store cannot be reached now; later, during the work, the lease is lost without a word.
    """
    hold = Hold(objects, lease_key(name), seconds)
    _take(hold, seconds, waiting)
    done = threading.Event()
    renewal = threading.Thread(target=_renew, args=(hold, seconds, done), name=f"lease {name}", daemon=True)
    renewal.start()
    try:
        yield
    finally:
        done.set()
        renewal.join()
        hold.give_back()


def forget_leases(objects: Objects, older_than_seconds: float) -> int:
    """Take away leases that nobody changed for so long, which must be longer than any lease lasts; how many."""
    now = objects.now()
    keys = [held.key for held in objects.below(LEASES) if now - held.changed > older_than_seconds]
    objects.remove(keys)
    return len(keys)


def _take(hold: Hold, seconds: float, waiting: Waiting) -> None:
    longest = min(_LONGEST_PAUSE_SECONDS, seconds / 4)
    pause = min(0.1, longest)
    told = False
    while True:
        try:
            return hold.prolong()
        except _Held as other:
            if not told:
                waiting(str(other))
                told = True
            time.sleep(random.uniform(pause / 2, pause))  # noqa: S311 - no secret
            pause = min(2 * pause, longest)


def _renew(hold: Hold, seconds: float, done: threading.Event) -> None:
    """Prolong a lease until it is done with, or another has it; a store that does not answer is asked again."""
    while not done.wait(seconds / 3):
        try:
            hold.prolong()
        except _Held:
            return
        except (PlansmithError, OSError):  # OSError: of a folder that another machine lends
            continue
