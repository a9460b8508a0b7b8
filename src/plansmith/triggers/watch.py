"""Registry watcher: polls each registry at its own interval, independently of the others, and stores the events."""

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

from plansmith.config.service_triggers import HubRegistry, MlflowRegistry, SageMakerRegistry, TriggersConfig
from plansmith.errors import InternalError, PlansmithError, first_line
from plansmith.sources.hub import newest_refs
from plansmith.system.digest import digest_of
from plansmith.triggers.pollers.poller import Poller
from plansmith.triggers.registries.delivery import Delivery, Event
from plansmith.triggers.registries.mlflow import MlflowApi, stages_of
from plansmith.triggers.registries.sagemaker import is_approved

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
    """Interface of the inbox; called from several threads."""

    def take(self, registry: str, delivery: str, events: Sequence[Event]) -> bool:
        """Store a delivery durably; return True, or False if it was stored before.

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
    """Result of one or more polls: the IDs seen, how many of them were new, and the fault, if any.

    `is_overtaken`: of some of it others told meanwhile, and whether before or after it only another look can say.
    """

    identifiers: frozenset[str] = frozenset()
    new: int = 0
    fault: PlansmithError | None = None
    is_overtaken: bool = False

    def __add__(self, other: PollResult) -> PollResult:
        return PollResult(self.identifiers | other.identifiers, self.new + other.new, other.fault, other.is_overtaken)


class _Overtaken(Exception):
    """A newer event was recorded while a registry was polled."""


class WatchLog:
    """Watch log: reports poll events to the log.

    Args:
        clock: the Unix time.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock

    def note(self, registry: str, message: str) -> None:
        """Log a notice to the user about a registry."""
        self.say(logging.WARNING, registry, "note", reason=message)

    def say(self, level: int, registry: str, event: str, **details: str) -> None:
        """Log an event of a registry by its short name, with further fields."""
        time = datetime.fromtimestamp(self.clock(), UTC).isoformat(timespec="milliseconds")
        fields = {key: value for key, value in details.items() if value}
        LOG.log(level, json.dumps({"event": event, "time": time, "registry": registry, **fields}, ensure_ascii=False))


@dataclass(frozen=True)
class FollowedRegistry:
    """A service that polls one registry of a watch until stopped."""

    watch: Watch
    name: str

    def work(self, stop: Moment) -> None:
        """Poll the registry until stopped."""
        self.watch.follow(self.name, stop)


class Watch:
    """Watch: polls registries and stores their events in the inbox.

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
        self._identifiers: dict[str, set[str]] = {name: set() for name in pollers}

    def begin(self) -> None:
        """Report which registries cannot be polled."""
        for name, poller in self._pollers.items():
            for caution in poller.cautions:
                self._notices.note(name, caution)

    def poll(self, name: str) -> PollResult:
        """Poll a registry once. Faults of the registry or inbox are reported when they start and when they end."""
        poller = self._pollers[name]
        try:
            begun = self._inbox.newest()
            deliveries = poller.poll(self._notices.clock())
            outcomes = [self._take(name, delivery, begun) for delivery in deliveries]
            if None not in outcomes:
                poller.acknowledge()
        except PlansmithError as error:
            return PollResult(fault=self._away(name, error))
        except Exception as error:  # noqa: BLE001 - a fault of ours in one registry ends none of the others
            fault = InternalError(
                f"a look at {name} failed: {type(error).__name__}: {first_line(error)}",
                remedy="please report this with the log",
            )
            return PollResult(fault=self._away(name, fault, traceback="".join(format_exception(error))))
        self._clear_fault(name)
        identifiers, new = frozenset(delivery.id for delivery in deliveries), outcomes.count(True)
        return PollResult(identifiers=identifiers, new=new, is_overtaken=None in outcomes)

    def poll_fully(self, name: str, wait: Callable[[float], object]) -> PollResult:
        """Poll a registry until its current state has been seen completely; `wait` waits for some seconds."""
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
        """Poll all registries while `wait` waits, and return its result; polls in progress are finished."""
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
        """Return one service per registry, each for its own thread."""
        return [FollowedRegistry(self, name) for name in self._pollers]

    def follow(self, name: str, stop: Moment) -> None:
        """Poll a registry until stopped: sooner if more is available, with backoff while it is unreachable."""
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
        """Store a delivery and return whether it is new; None where a newer event was recorded since the poll began.

        One that this process kept already is not written again at each look.
        """
        try:
            known_as = self._id(delivery, begun)
        except _Overtaken:
            return None
        if known_as is None or known_as in self._identifiers[name]:
            return False
        new = self._inbox.take(name, known_as, delivery.events)
        if len(self._identifiers[name]) >= _MOST_KNOWN:
            self._identifiers[name].clear()  # the inbox knows them all
        self._identifiers[name].add(known_as)
        if new:
            description = "; ".join(event.label for event in delivery.events)
            self._notices.say(logging.INFO, name, "found", delivery=delivery.id, what=description)
        return new

    def _id(self, delivery: Delivery, begun: int) -> str | None:
        """The idempotency key of a delivery.

        None where the newest event of its topic in the inbox has the same content.

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
            details = {"reason": error.message, "remedy": error.remedy, "traceback": traceback}
            self._notices.say(logging.ERROR, name, "away", **details)
        return error

    def _clear_fault(self, name: str) -> None:
        if self._faults.pop(name, None) is not None:
            self._notices.say(logging.INFO, name, "there again")


class Confirmation:
    """Confirmation: checks that an alias, stage or branch still points to an event's version, or a package is approved.

    What lies in a folder or under a prefix is built as it is there then, and whoever asked for something still wants
    it: of these nobody is asked, nor of what a registry told that the service's file has no more.

    Args:
        config: of the service's triggers.
        environment: of the process, with MLflow's credentials.
    """

    def __init__(self, config: TriggersConfig, environment: Mapping[str, str]) -> None:
        self._registries = config.registries
        self._environment = environment

    def __call__(self, event: Event) -> bool | None:
        """Whether it is still so; None if that cannot be known.

        Raises:
            EnvironmentFault: the registry cannot be asked.
            SourceError: the hub has no such model any more.
            UsageError: SageMaker has no such package any more.
        """
        registry = self._registries.get(event.registry)
        if isinstance(registry, MlflowRegistry) and event.change in {"alias", "stage"}:
            api = MlflowApi(registry.tracking_uri, self._environment)
            current = (
                stages_of(api.versions(event.model)) if event.change == "stage" else api.aliases(event.model) or {}
            )
        elif isinstance(registry, HubRegistry):
            current = newest_refs(event.model)
        elif isinstance(registry, SageMakerRegistry):
            return is_approved(registry, event.version)
        else:
            return None
        return current.get(event.value) == event.version
