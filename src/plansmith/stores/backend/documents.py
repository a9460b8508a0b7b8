"""JSON documents of a store: small objects, read and changed by compare-and-set."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TypeVar

from plansmith.errors import PlansmithError, RepositoryError, first_line
from plansmith.records.model import Record
from plansmith.stores.backend.object_store import Changed, KeyTaken, Objects
from plansmith.stores.backend.turns import Lapsed, alone, clock, warn
from plansmith.stores.layout import LEASES, lease_key

R = TypeVar("R", bound=Record)

_MOST_SECONDS = 120.0
_LONGEST_PAUSE_SECONDS = 1.0

PRUNING = "prune"
"""Names the lease of a store's pruner."""

_PRUNING_SECONDS = 120.0
_SILENT_SECONDS = 2.0

SECONDS = 60.0
"""How long a lease lasts after its holder was heard of last."""

_LONGEST_LEASE_PAUSE_SECONDS = 3.0
Waiting = Callable[[str], None]
"""Told once that another holds a lease: who, in words. What it raises ends the attempt."""


def new_token() -> str:
    """Return a unique token that no other writer uses."""
    return uuid.uuid4().hex


def utc_now() -> str:
    """Return the current time in UTC, in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def content_of(document: Record) -> bytes:
    """Serialize a document for storage."""
    return document.model_dump_json(indent=1).encode()


def read_document(objects: Objects, key: str, kind: type[R]) -> R | None:
    """Read a document; None if it does not exist.

    Raises:
        RepositoryError: it is damaged.
    """
    document = objects.read(key)
    return None if document is None else _parsed(kind, document.content, key, objects)


def change(objects: Objects, key: str, kind: type[R], changed: Callable[[R | None], R]) -> R:
    """Optimistic update: read a document and conditionally write the new one; retry if it changed meanwhile.

    Args:
        objects: the store's.
        key: of the document.
        kind: its record.
        changed: gives the new document, with a token of its own, from the old one, which may not be there; or the old
            one, which is left as it is. What it raises ends the attempt.

    Raises:
        RepositoryError: it is damaged, or others change it all the time.
    """
    begun = time.monotonic()
    pause = 0.02
    while time.monotonic() - begun < _MOST_SECONDS:
        try:
            return _changed_once(objects, key, kind, changed)
        except (KeyTaken, Changed, Lapsed):
            time.sleep(random.uniform(0, pause))  # noqa: S311 - no secret
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    raise RepositoryError(
        f"{key} in {objects.place} was changed by others for {_MOST_SECONDS:.0f} s without a pause",
        remedy="run the same command again",
        transient=True,
    )


def _changed_once(objects: Objects, key: str, kind: type[R], changed: Callable[[R | None], R]) -> R:
    with alone(objects, key) as require:
        document = objects.read(key)
        old = None if document is None else _parsed(kind, document.content, key, objects)
        new = changed(old)
        if new == old:
            objects.flush([key])
            return new
        require()
        if document is None:
            objects.create(key, content_of(new))
        else:
            objects.swap(key, content_of(new), document.tag)
        return new


def _parsed(kind: type[R], content: bytes, key: str, objects: Objects) -> R:
    try:
        return kind.model_validate_json(content)
    except ValueError as error:
        raise RepositoryError(
            f"{key} in {objects.place} is damaged: {first_line(error)}",
            remedy=f"see what else is: plansmith verify --store {objects.typed}",
        ) from error


class Lease(Record):
    """Lease: the holder of a piece of work, and its expiry by the store's clock, in seconds since 1970.

    `holder`: a token of whoever took it; empty once it was given back. `who`: the same for people.
    """

    holder: str
    who: str
    until: float
    token: str


class Hold:
    """A lease held by this process.

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
        """Acquire or renew the lease.

        Raises:
            _LeaseConflict: another has it.
        """
        change(self._objects, self._key, Lease, self._prolonged)

    def give_back(self) -> None:
        """Release the lease for others; if that fails, they can acquire it when it expires."""
        with suppress(PlansmithError, OSError, _LeaseConflict):
            change(self._objects, self._key, Lease, self._given_back)

    def _prolonged(self, old: Lease | None) -> Lease:
        now = self._objects.now()
        if old is not None and old.holder != self._holder and old.until > now:
            raise _LeaseConflict(old.who)
        owner = f"{socket.gethostname()}, process {os.getpid()}"
        return Lease(holder=self._holder, who=owner, until=now + self._seconds, token=new_token())

    def _given_back(self, old: Lease | None) -> Lease:
        if old is None or old.holder != self._holder:
            raise _LeaseConflict
        return old.model_copy(update={"holder": "", "until": 0.0, "token": new_token()})


class _LeaseConflict(Exception):
    """Raised if another process holds the lease."""


@contextmanager
def leased(objects: Objects, name: str, seconds: float = SECONDS, waiting: Waiting = lambda _: None) -> Iterator[None]:
    """Hold a lease for the block, renewed by a thread; waits until another holder releases it or it expires.

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


@contextmanager
def pruning(objects: Objects, waiting: Waiting = warn) -> Iterator[Callable[[], None]]:
    """Hold the lease of the store's pruner for the block; waits until another holder releases it or it expires.

    Gives what is to be called right before each removal: it renews the lease, and keeps a pruner that was suspended
    from removing what a publication relies on by now. Not promised for one that is suspended for most of the lease's
    time between that call and its removal.

    Raises:
        RepositoryError: the store refuses it; from the call, another pruner has it.
    """
    hold, heard = Hold(objects, lease_key(PRUNING), _PRUNING_SECONDS), clock()
    _take(hold, _PRUNING_SECONDS, waiting)

    def require() -> None:
        nonlocal heard
        if clock() - heard < _PRUNING_SECONDS / 10:
            return
        begun = clock()
        try:
            hold.prolong()
        except _LeaseConflict as conflict:
            raise RepositoryError(
                f"{objects.place} is pruned by {conflict}", remedy="run the same command again", transient=True
            ) from None
        heard = begun

    try:
        yield require
    finally:
        hold.give_back()


def outwait_pruner(objects: Objects, waiting: Waiting = warn) -> None:
    """Wait until a pruner that is at work has ended, or its lease has expired."""
    is_reported, begun = False, clock()
    while True:
        lease = read_document(objects, lease_key(PRUNING), Lease)
        if lease is None or not lease.holder or lease.until <= objects.now():
            return
        if not is_reported and clock() - begun > _SILENT_SECONDS:
            waiting(f"{objects.place}: waiting for {lease.who}, which prunes there")
            is_reported = True
        time.sleep(random.uniform(_LONGEST_PAUSE_SECONDS / 2, _LONGEST_PAUSE_SECONDS))  # noqa: S311 - no secret


def forget_leases(objects: Objects, older_than_seconds: float) -> int:
    """Delete leases unchanged for so long, which must exceed the duration of any lease; return the number."""
    now = objects.now()
    keys = [item.key for item in objects.below(LEASES) if now - item.changed > older_than_seconds]
    objects.remove(keys)
    return len(keys)


def _take(hold: Hold, seconds: float, waiting: Waiting) -> None:
    longest = min(_LONGEST_LEASE_PAUSE_SECONDS, seconds / 4)
    pause = min(0.1, longest)
    is_reported = False
    while True:
        try:
            return hold.prolong()
        except _LeaseConflict as conflict:
            if not is_reported:
                waiting(str(conflict))
                is_reported = True
            time.sleep(random.uniform(pause / 2, pause))  # noqa: S311 - no secret
            pause = min(2 * pause, longest)


def _renew(hold: Hold, seconds: float, done: threading.Event) -> None:
    """Renew a lease until it is released or lost; an unresponsive store is retried."""
    while not done.wait(seconds / 3):
        try:
            hold.prolong()
        except _LeaseConflict:
            return
        except (PlansmithError, OSError):  # OSError: of a folder that another machine lends
            continue
