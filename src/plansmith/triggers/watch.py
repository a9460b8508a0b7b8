"""Looks at registries all the time, each in its own pace and none waiting for another, and keeps what is found."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Event as Moment
from threading import Thread
from traceback import format_exception
from typing import Protocol, TypeVar

from plansmith.errors import InternalError, PlansmithError, first_line
from plansmith.system.digest import digest_of
from plansmith.triggers.pollers.poller import Poller
from plansmith.triggers.registries.delivery import Delivery
from plansmith.triggers.registries.event import Event

T = TypeVar("T")

LOG = logging.getLogger("plansmith.watch")
"""A line of JSON for each thing that is told, as its whole message."""

_LONGEST_PAUSE_SECONDS = 60.0
_SHORTEST_PAUSE_SECONDS = 1.0
_SETTLING_SECONDS = 2.0
_MOST_KNOWN = 100_000
_FEWEST_POLLS = 2
"""So that what was told during a look is looked at again."""


class Inbox(Protocol):
    """Where deliveries are kept; called from several threads."""

    def take(self, registry: str, delivery: str, events: Sequence[Event]) -> bool:
        """Store a delivery durably before this returns: True, or False where it has been stored before.

        Raises:
            Exception: it is not stored.
        """
        ...

    def youngest(self, event: Event) -> tuple[int, str] | None:
        """As `Inbox.youngest`."""
        ...

    def newest(self) -> int:
        """As `Inbox.newest`."""
        ...


@dataclass(frozen=True)
class PollResult:
    """What came of a look, or of several: ids of what was there, how many of them were new, and what went wrong.

    `is_overtaken`: of some of it others told meanwhile, and whether before or after it only another look can say.
    """

    seen: frozenset[str] = frozenset()
    new: int = 0
    fault: PlansmithError | None = None
    is_overtaken: bool = False

    def __add__(self, other: PollResult) -> PollResult:
        return PollResult(self.seen | other.seen, self.new + other.new, other.fault, other.is_overtaken)


class _Overtaken(Exception):
    """Something was told while a registry was looked at."""


class WatchLog:
    """Says what happens, to whoever reads the log.

    Args:
        clock: the Unix time.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock

    def note(self, registry: str, words: str) -> None:
        """Something that a person should know of a registry."""
        self.say(logging.WARNING, registry, "note", reason=words)

    def say(self, level: int, registry: str, event: str, **said: str) -> None:
        """What happened to a registry, in a word, with what else there is to say."""
        time = datetime.fromtimestamp(self.clock(), UTC).isoformat(timespec="milliseconds")
        given = {key: value for key, value in said.items() if value}
        LOG.log(level, json.dumps({"event": event, "time": time, "registry": registry, **given}, ensure_ascii=False))


@dataclass(frozen=True)
class FollowedRegistry:
    """Looks at one registry of a watch until it is told to stop."""

    watch: Watch
    name: str

    def work(self, stop: Moment) -> None:
        """Look at it until told to stop."""
        self.watch.follow(self.name, stop)


class Watch:
    """Looks at registries and keeps what it finds.

    Args:
        pollers: by the names of the registries.
        inbox: where it is kept.
        notices: says what happens, and has the clock.
    """

    def __init__(self, pollers: Mapping[str, Poller], inbox: Inbox, notices: WatchLog) -> None:
        self._pollers = pollers
        self._inbox = inbox
        self._notices = notices
        self._faults: dict[str, str] = {}
        self._taken: dict[str, set[str]] = {name: set() for name in pollers}

    def begin(self) -> None:
        """Say what cannot be looked at."""
        for name, poller in self._pollers.items():
            for caution in poller.cautions:
                self._notices.note(name, caution)

    def poll(self, name: str) -> PollResult:
        """Look at a registry once. Whatever goes wrong with it or the inbox is said when it begins and when it ends."""
        poller = self._pollers[name]
        try:
            begun = self._inbox.newest()
            found = poller.poll(self._notices.clock())
            taken = [self._take(name, delivery, begun) for delivery in found]
            if None not in taken:
                poller.acknowledge()
        except PlansmithError as error:
            return PollResult(fault=self._away(name, error))
        except Exception as error:  # noqa: BLE001 - a fault of ours in one registry ends none of the others
            fault = InternalError(
                f"a look at {name} failed: {type(error).__name__}: {first_line(error)}",
                remedy="please report this with the log",
            )
            return PollResult(fault=self._away(name, fault, traceback="".join(format_exception(error))))
        self._there(name)
        seen, new = frozenset(delivery.id for delivery in found), taken.count(True)
        return PollResult(seen=seen, new=new, is_overtaken=None in taken)

    def poll_fully(self, name: str, wait: Callable[[float], object]) -> PollResult:
        """Look at a registry until all that is there now has been seen; `wait` waits for some seconds."""
        poller, looked = self._pollers[name], PollResult()
        most = max(poller.most_polls, _FEWEST_POLLS)
        for number in range(most):
            looked += self.poll(name)
            if looked.fault is not None or not (poller.has_more or looked.is_overtaken):
                break
            if poller.pause_seconds and number + 1 < most:
                wait(_SETTLING_SECONDS)
        return looked

    def run(self, wait: Callable[[], T]) -> T:
        """Look at all registries as long as `wait` waits, which is what it tells; looks that have begun are ended."""
        self.begin()
        stop = Moment()
        threads = [Thread(target=self.follow, args=(name, stop), name=f"watch {name}") for name in self._pollers]
        for thread in threads:
            thread.start()
        try:
            return wait()
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def services(self) -> list[FollowedRegistry]:
        """What looks at each registry in a thread of its own."""
        return [FollowedRegistry(self, name) for name in self._pollers]

    def follow(self, name: str, stop: Moment) -> None:
        """Look at a registry until it is time to end: sooner where more is there, rarer the longer it is away."""
        poller, faults = self._pollers[name], 0
        while not stop.is_set():
            looked = self.poll(name)
            faults = 0 if looked.fault is None else faults + 1
            pause = poller.pause_seconds
            if faults:
                pause = min(_SHORTEST_PAUSE_SECONDS * 2 ** min(faults - 1, 10), _LONGEST_PAUSE_SECONDS)
            elif poller.has_more or looked.is_overtaken:
                pause = min(pause, _SETTLING_SECONDS)
            if pause and stop.wait(pause):
                return

    def _take(self, name: str, delivery: Delivery, begun: int) -> bool | None:
        """Keep a delivery: whether it is new; None where others told of the same since the look at it had begun.

        One that this process kept already is not written again at each look.
        """
        try:
            known_as = self._id(delivery, begun)
        except _Overtaken:
            return None
        if known_as is None or known_as in self._taken[name]:
            return False
        new = self._inbox.take(name, known_as, delivery.events)
        if len(self._taken[name]) >= _MOST_KNOWN:
            self._taken[name].clear()  # the inbox knows them all
        self._taken[name].add(known_as)
        if new:
            words = "; ".join(event.words for event in delivery.events)
            self._notices.say(logging.INFO, name, "found", delivery=delivery.id, what=words)
        return new

    def _id(self, delivery: Delivery, begun: int) -> str | None:
        """What a delivery is known by; None where the newest that the inbox has of its topic says the same.

        What an alias stands for again is news: the id is that of the change from what the inbox has.

        Raises:
            _Overtaken: that is younger than the look, which may tell of what was before it.
        """
        current = next((event for event in delivery.events if event.is_current), None)
        youngest = self._inbox.youngest(current) if current is not None else None
        if current is None or youngest is None:
            return delivery.id
        number, content_key = youngest
        if content_key == current.content_key:
            return None
        if number > begun:
            raise _Overtaken
        return digest_of([delivery.id, number])

    def _away(self, name: str, error: PlansmithError, *, traceback: str = "") -> PlansmithError:
        # Messages of other programs differ each time, by the number of a request and the like; what to do does not.
        kind = error.message if isinstance(error, InternalError) else error.remedy
        is_new = self._faults.get(name) != kind
        self._faults[name] = kind
        if is_new:
            said = {"reason": error.message, "remedy": error.remedy, "traceback": traceback}
            self._notices.say(logging.ERROR, name, "away", **said)
        return error

    def _there(self, name: str) -> None:
        if self._faults.pop(name, None) is not None:
            self._notices.say(logging.INFO, name, "there again")
