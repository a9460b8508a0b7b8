"""Turns: one process at a time changes something in a store whose server does not keep writers apart by itself.

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
from plansmith.system.aws.s3.objects import Held

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
    """The turn may be another's by now, or will be before a write ends that begins now."""


def warn(text: str) -> None:
    """Tell of a wait in the log, of which Python shows warnings on standard error where nothing else was set up."""
    _log.warning("%s", text)


@contextmanager
def alone(objects: Objects, name: str) -> Iterator[Callable[[], None]]:
    """Be the only one who changes what bears a name, where conditional writes do not see to that by themselves.

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
    """Wait for the turn to change what bears a name, and have it for a short while.

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
    """A place in the row of those who want to change something; arguments as for `turn`."""

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
        self._begun = _clock()
        self._told = False

    def wait(self) -> None:
        """Come in turn."""
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
        """See that the turn stays this one's until a write has ended that begins now.

        Raises:
            Lapsed: it may not.
        """
        if _clock() - self._heard > self._trusted_seconds:
            raise Lapsed(self._tickets)

    def give_back(self) -> None:
        """Let the next one go on at once; where that fails, it goes on when the ticket has run out."""
        with suppress(PlansmithError):
            self._objects.remove(key for key in (self._chooses, self._ticket) if key)

    def _draw(self) -> None:
        """Put a ticket with a number above all that are there. Tickets sort as their numbers do."""
        name = secrets.token_hex(8)
        self._chooses, self._ticket = f"{self._choosing}{name}", ""
        self._heard = _clock()
        self._put(self._chooses)
        drawn = _clock()
        highest = max((_number(held.key) for held in self._objects.below(self._tickets)), default=0)
        self._ticket = f"{self._tickets}{highest + 1:012d}-{name}"
        self._put(self._ticket)
        self.require()  # one who chooses for too long is no longer waited for
        self._heard = drawn
        self._objects.remove([self._chooses])

    def _outwait(self, prefix: str, below: str | None = None) -> None:
        """Wait until those whose keys begin so now, or those of them below a key, went away or ran out."""
        ahead = {held.key for held in self._objects.below(prefix) if below is None or held.key < below}
        if not ahead:
            return
        behind_seconds = self._objects.now() - _clock()  # asked once: both clocks go on alike
        patience = 1.0
        while ahead:
            pause = min(_PAUSE_SECONDS * len(ahead) * patience, _LONGEST_PAUSE_SECONDS)
            time.sleep(random.uniform(pause / 2, pause))  # noqa: S311 - no secret
            self._stay()
            now = _clock() + behind_seconds
            there = [held for held in self._objects.below(prefix) if held.key in ahead]
            run_out = {held.key for held in there if now - held.changed > self._seconds}
            self._objects.remove(sorted(run_out))
            self._tell([held for held in there if held.key not in run_out], now)
            patience = 1.0 if len(there) < len(ahead) else 2 * patience
            ahead = {held.key for held in there} - run_out

    def _tell(self, ahead: list[Held], now: float) -> None:
        """Say who is ahead, once, if that goes on for longer than a write takes."""
        if self._told or not ahead or _clock() - self._begun < _SILENT_SECONDS:
            return
        found = self._objects.read(ahead[0].key)
        if found is not None:  # else it just went
            longest = max(held.changed for held in ahead) + self._seconds - now
            who = " ".join(found.content.decode(errors="replace").split())
            self._told = True
            self._waiting(
                f"{self._objects.place}: waiting for {who}, which writes there; "
                f"if it died, this goes on in {max(longest, 1):.0f} s"
            )

    def _stay(self) -> None:
        """Keep the ticket from running out; one that may have, before it was written again, is not used."""
        if _clock() - self._heard > self._seconds / 6:
            self.require()
            begun = _clock()
            self._put(self._ticket)
            self.require()
            self._heard = begun

    def _put(self, key: str) -> None:
        self._objects.put(key, f"{socket.gethostname()}, process {os.getpid()}\n".encode())


def _number(ticket: str) -> int:
    return int(ticket.rsplit("-", 2)[1])


def _clock() -> float:
    """Seconds that pass also while the machine sleeps, where there is such a clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _need_no_turn() -> None:
    """Conditional writes see to it."""
