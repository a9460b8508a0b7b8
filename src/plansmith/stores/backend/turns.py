"""Bakery lock (Lamport): one process at a time changes a store whose server does not separate writers itself.

Lamport's bakery ("A new solution of Dijkstra's concurrent programming problem", CACM 17(8), 1974, pages 453 to 455)
with objects in place of shared variables: whoever comes says that it chooses, looks at the tickets that are out, puts
one of the next number, and says that it has chosen. Then it waits for those who were choosing, and for every lower
ticket. Two that chose the same number go by their names. No write needs a condition; what is needed is that a list
names every object whose write was answered before the list was asked for, which S3 promises since December 2020
(docs.aws.amazon.com/AmazonS3/latest/userguide/Welcome.html, "Amazon S3 data consistency model"). A server whose lists
lag behind its writes is not helped by this.

A ticket whose owner is not heard of runs out by the store's clock. The owner knows that from its own clock, counted
from before the write that kept the ticket alive, and stops a margin earlier: the margin is longer than a small write
takes with all that is tried again, so that a write that begins in time ends in time. Not promised, as no lock without
the server's help can: a process that is suspended between that look at its clock and its write, a network that delivers
a write after it was given up, a virtual machine that is stopped and goes on with the clock it had, and a server whose
clock jumps by more than the margin.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from plansmith.errors import PlansmithError
from plansmith.stores.backend.object_store import Objects
from plansmith.stores.layout import TURNS
from plansmith.system.aws.bucket import ObjectMetadata

SECONDS = 600.0
"""How long a ticket lasts after its owner was heard of last."""

MARGIN_SECONDS = 450.0
"""How long before that its owner stops: longer than a small write takes with all that is tried again."""

_PAUSE_SECONDS = 0.05  # for each who is ahead
_LONGEST_PAUSE_SECONDS = 1.0
_SILENT_SECONDS = 2.0

Waiting = Callable[[str], None]
"""Told once, in words, that another has had the turn for a while: who, and how long that may go on."""

_log = logging.getLogger(__name__)


class Lapsed(Exception):
    """Turn lapsed: another process may hold it by now, or before a write that starts now ends."""


def warn(text: str) -> None:
    """Log a warning about a wait; by default, Python shows warnings on standard error."""
    _log.warning("%s", text)


@contextmanager
def alone(objects: Objects, name: str) -> Iterator[Callable[[], None]]:
    """Mutual exclusion: be the only writer of a name, where conditional writes do not ensure that.

    Gives what is to be called right before each write; it raises Lapsed where this must begin again.
    """
    if objects.abilities.is_conditional:
        yield _need_no_turn
        return
    with turn(objects, name) as mine:
        yield mine.require


@contextmanager
def turn(
    objects: Objects,
    name: str,
    seconds: float = SECONDS,
    margin_seconds: float = MARGIN_SECONDS,
    waiting: Waiting = warn,
) -> Iterator[LockClaim]:
    """Wait for the turn to change a name, and hold it for a short time.

    Args:
        objects: the store's.
        name: of what is changed; the same for all who change it.
        seconds: how long others wait for one who is not heard of; the same for all.
        margin_seconds: how long before that the turn is taken for lost by who has it.
        waiting: told if it takes more than a moment until this one's turn comes.
    """
    mine = LockClaim(objects, name, seconds, margin_seconds, waiting)
    mine.wait()
    try:
        yield mine
    finally:
        mine.give_back()


class LockClaim:
    """Ticket in the queue of processes that want to change a name; arguments as for `turn`."""

    def __init__(self, objects: Objects, name: str, seconds: float, margin_seconds: float, waiting: Waiting) -> None:
        self._objects = objects
        self._choosing = f"{TURNS}{name}/choosing-"
        self._tickets = f"{TURNS}{name}/ticket-"
        self._seconds = seconds
        self._trusted_seconds = seconds - margin_seconds
        self._chooses = ""
        self._ticket = ""
        self._heard = 0.0
        self._waiting = waiting
        self._begun = clock()
        self._is_reported = False

    def wait(self) -> None:
        """Wait for the turn."""
        while True:
            try:
                self._draw()
                # Who chose before this ticket was there may have a lower one; who chooses from now on has a higher one.
                self._outwait(self._choosing)
                self._outwait(self._tickets, below=self._ticket)
            except Lapsed:
                self.give_back()
            except BaseException:
                self.give_back()
                raise
            else:
                return

    def require(self) -> None:
        """Require that the turn lasts until a write that starts now has ended.

        Raises:
            Lapsed: it may not.
        """
        if clock() - self._heard > self._trusted_seconds:
            raise Lapsed(self._tickets)

    def give_back(self) -> None:
        """Release the turn at once; if that fails, the next process continues when the ticket expires."""
        with suppress(PlansmithError):
            self._objects.remove(key for key in (self._chooses, self._ticket) if key)

    def _draw(self) -> None:
        """Write a ticket with a number above all existing ones. Tickets sort by number."""
        name = secrets.token_hex(8)
        self._chooses, self._ticket = f"{self._choosing}{name}", ""
        self._heard = clock()
        self._put(self._chooses)
        drawn = clock()
        highest = max((_number(item.key) for item in self._objects.below(self._tickets)), default=0)
        self._ticket = f"{self._tickets}{highest + 1:012d}-{name}"
        self._put(self._ticket)
        self.require()  # one who chooses for too long is no longer waited for
        self._heard = drawn
        self._objects.remove([self._chooses])

    def _outwait(self, prefix: str, below: str | None = None) -> None:
        """Wait until the current tickets with this prefix, or those below a key, are removed or expire."""
        ahead = {item.key for item in self._objects.below(prefix) if below is None or item.key < below}
        if not ahead:
            return
        behind_seconds = self._objects.now() - clock()  # asked once: both clocks go on alike
        patience = 1.0
        while ahead:
            pause = min(_PAUSE_SECONDS * len(ahead) * patience, _LONGEST_PAUSE_SECONDS)
            time.sleep(random.uniform(pause / 2, pause))  # noqa: S311 - no secret
            self._stay()
            now = clock() + behind_seconds
            remaining = [item for item in self._objects.below(prefix) if item.key in ahead]
            run_out = {item.key for item in remaining if now - item.changed > self._seconds}
            self._objects.remove(sorted(run_out))
            self._tell([item for item in remaining if item.key not in run_out], now)
            patience = 1.0 if len(remaining) < len(ahead) else 2 * patience
            ahead = {item.key for item in remaining} - run_out

    def _tell(self, ahead: list[ObjectMetadata], now: float) -> None:
        """Report once which process is ahead, if the wait takes longer than a write."""
        if self._is_reported or not ahead or clock() - self._begun < _SILENT_SECONDS:
            return
        document = self._objects.read(ahead[0].key)
        if document is not None:  # else it just went
            longest = max(item.changed for item in ahead) + self._seconds - now
            owner = " ".join(document.content.decode(errors="replace").split())
            self._is_reported = True
            self._waiting(
                f"{self._objects.place}: waiting for {owner}, which writes there; "
                f"if it died, this goes on in {max(longest, 1):.0f} s"
            )

    def _stay(self) -> None:
        """Keep the ticket from expiring; one that may have expired before its renewal is not used."""
        if clock() - self._heard > self._seconds / 6:
            self.require()
            begun = clock()
            self._put(self._ticket)
            self.require()
            self._heard = begun

    def _put(self, key: str) -> None:
        self._objects.put(key, f"{socket.gethostname()}, process {os.getpid()}\n".encode())


def _number(ticket: str) -> int:
    return int(ticket.rsplit("-", 2)[1])


def clock() -> float:
    """Return the seconds of a clock that also runs while the machine sleeps, if there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _need_no_turn() -> None:
    """Do nothing: conditional writes need no lock."""
