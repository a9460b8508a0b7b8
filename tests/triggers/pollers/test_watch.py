"""What is found is kept before a registry may forget it; a registry that is away ends no other and is said once."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from plansmith.errors import EnvironmentFault, PlansmithError
from plansmith.triggers.pollers.poller import Poller, polled
from plansmith.triggers.registries.delivery import Delivery, Event
from plansmith.triggers.watch import LOG, Watch, WatchLog

from ...support.deliveries.receiving import MemoryInbox
from ...support.waiting import SECONDS

NOW = 1795165608.0


def make_delivery(model: str, version: str = "1") -> Delivery:
    return polled(Event(registry="ours", model=model, version=version, change="alias", value="champion"))


def tagged(model: str, version: str = "1") -> Delivery:
    return polled(Event(registry="ours", model=model, version=version, change="tag", value="compile=requested"))


class Scripted(Poller):
    """Tells in turn what it was given, and the last of it for ever; notes when it may forget."""

    pause_seconds = 7.0
    most_polls = 5

    def __init__(self, *answers: Sequence[Delivery] | Exception, more: int = 0) -> None:
        self._answers = list(answers)
        self._more = more
        self.looks: list[float] = []
        self.took_at: list[int] = []
        self.took_fault: PlansmithError | None = None
        self.looked = threading.Event()

    def poll(self, now: float) -> list[Delivery]:
        self.looks.append(now)
        self.has_more = len(self.looks) <= self._more
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        self.looked.set()
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    def acknowledge(self) -> None:
        if self.took_fault is not None:
            raise self.took_fault
        self.took_at.append(len(self.looks))


class Lines(logging.Handler):
    """What was said, as documents."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.entries.append(json.loads(record.getMessage()))

    @property
    def events(self) -> list[tuple[str, str]]:
        return [(entry["registry"], entry["event"]) for entry in self.entries]


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, level = Lines(), LOG.level
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    yield handler
    LOG.removeHandler(handler)
    LOG.setLevel(level)


@pytest.fixture
def inbox() -> MemoryInbox:
    return MemoryInbox()


def watching(inbox: MemoryInbox, **pollers: Poller) -> Watch:
    return Watch(pollers, inbox, WatchLog(lambda: NOW))


def test_existing_change_kept_once(inbox: MemoryInbox, lines: Lines) -> None:
    """What is there is kept once and said once."""
    poller = Scripted([make_delivery("a"), make_delivery("b")])
    watch = watching(inbox, ours=poller)
    first, second = watch.poll("ours"), watch.poll("ours")
    assert (len(first.identifiers), first.new, first.fault) == (2, 2, None)
    assert (len(second.identifiers), second.new) == (2, 0)
    assert set(inbox.deliveries) == {("ours", make_delivery("a").id), ("ours", make_delivery("b").id)}
    assert lines.events == [("ours", "found")] * 2
    assert lines.entries[0]["what"] == "a, version 1 (alias champion)"
    assert poller.looks == [NOW, NOW]


def test_returning_alias_told_again_once(inbox: MemoryInbox) -> None:
    """What an alias stands for again is told again and once."""
    versions = ["3", "4", "3", "3", "4"]
    looks = [[make_delivery("a", version)] for version in versions]
    first = watching(inbox, ours=Scripted(*looks))
    assert [first.poll("ours").new for _ in versions] == [1, 1, 1, 0, 1]
    assert watching(inbox, ours=Scripted(*looks[-1:])).poll("ours").new == 0, "another process begins"


def test_simultaneous_watchers_tell_one(inbox: MemoryInbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that see the same change at once tell one."""
    for version in ("3", "4"):
        inbox.take("ours", make_delivery("a", version).id, make_delivery("a", version).events)
    both = [watching(inbox, ours=Scripted([make_delivery("a", "3")])) for _ in range(2)]
    monkeypatch.setattr(
        inbox, "youngest", partial(lambda youngest, _: youngest, inbox.youngest(make_delivery("a").events[0]))
    )
    assert [watcher.poll("ours").new for watcher in both] == [1, 0]
    assert len(inbox.deliveries) == 3


def test_webhook_news_not_repeated(inbox: MemoryInbox) -> None:
    """What a webhook told last is not told again, and what it did not tell is."""
    watch = watching(inbox, ours=Scripted([make_delivery("a", "4")], [make_delivery("a", "3")]))
    inbox.take("ours", "of a webhook", make_delivery("a", "4").events)
    assert [watch.poll("ours").new, watch.poll("ours").new] == [0, 1]


class Slow(Scripted):
    """While it looks for the first time, something else happens."""

    def __init__(self, meanwhile: Callable[[], object], *answers: Sequence[Delivery]) -> None:
        super().__init__(*answers)
        self._meanwhile = meanwhile

    def poll(self, now: float) -> list[Delivery]:
        if not self.looks:
            self._meanwhile()
        return super().poll(now)


def test_webhook_not_overtaken_by_look(inbox: MemoryInbox) -> None:
    """What a webhook told during a look is not overtaken by it."""

    def moved() -> None:
        inbox.take("ours", "of a webhook", make_delivery("a", "4").events)

    poller = Slow(moved, [make_delivery("a", "3"), make_delivery("b")], [make_delivery("a", "4"), make_delivery("b")])
    watch = watching(inbox, ours=poller)
    looked = watch.poll("ours")
    assert (looked.new, looked.is_overtaken, poller.took_at) == (1, True, [])
    looked = watch.poll("ours")
    assert (looked.new, looked.is_overtaken, poller.took_at) == (0, False, [2])
    assert inbox.youngest(make_delivery("a").events[0]) == (0, make_delivery("a", "4").events[0].content_key)


def test_change_during_look_rechecked(inbox: MemoryInbox) -> None:
    """What changed during a look is looked at again soon."""
    numbers = iter("56")

    def moved() -> None:
        number = next(numbers)
        inbox.take("ours", number, make_delivery("a", number).events)

    poller = Slow(moved, [make_delivery("a", "3")])
    poller.most_polls = 1
    waited: list[float] = []
    assert watching(inbox, ours=poller).poll_fully("ours", waited.append).new == 1
    assert waited == [2.0]
    stop = Counted(2)
    watching(inbox, ours=Slow(moved, [make_delivery("a", "3")])).follow("ours", stop)
    assert stop.waited == [2.0, 7.0]


def test_tag_told_once_beside_others(inbox: MemoryInbox) -> None:
    """A tag stays beside others and is told once."""
    watch = watching(inbox, ours=Scripted([tagged("a", "3"), tagged("a", "4")]))
    assert [watch.poll("ours").new for _ in range(3)] == [2, 0, 0]


def test_change_kept_elsewhere_not_repeated(inbox: MemoryInbox, lines: Lines) -> None:
    """What another process kept is not said again."""
    inbox.take("ours", make_delivery("a").id, make_delivery("a").events)
    assert watching(inbox, ours=Scripted([make_delivery("a")])).poll("ours").new == 0
    assert lines.entries == []


def test_registry_forgets_kept_only(inbox: MemoryInbox, lines: Lines) -> None:
    """A registry may forget what is kept, and nothing before."""
    poller = Scripted([make_delivery("a"), make_delivery("b")])
    watch = watching(inbox, ours=poller)
    inbox.fault = EnvironmentFault("the disk is full", remedy="free some space", transient=True)
    assert watch.poll("ours").fault is inbox.fault
    assert poller.took_at == []
    inbox.fault = None
    assert watch.poll("ours").new == 2
    assert poller.took_at == [2]
    assert lines.events == [("ours", "away"), ("ours", "found"), ("ours", "found"), ("ours", "there again")]


def test_undeleted_message_not_kept_twice(inbox: MemoryInbox) -> None:
    """What could not be deleted comes again and is not kept twice."""
    poller = Scripted([make_delivery("a")])
    poller.took_fault = EnvironmentFault("no answer", remedy="wait", transient=True)
    watch = watching(inbox, ours=poller)
    assert watch.poll("ours").fault is poller.took_fault
    poller.took_fault = None
    assert watch.poll("ours").new == 0
    assert len(inbox.deliveries) == 1


def test_registry_absence_and_return_told(inbox: MemoryInbox, lines: Lines) -> None:
    """A registry that goes and comes is said once each."""
    away = [EnvironmentFault(f"no answer (request {number})", remedy="see its log") for number in range(3)]
    refused = EnvironmentFault("who are you?", remedy="set a password")
    watch = watching(inbox, ours=Scripted([], *away, refused, refused, [], [], away[0], []))
    for _ in range(10):
        watch.poll("ours")
    assert [line["event"] for line in lines.entries] == ["away", "away", "there again", "away", "there again"]
    assert [line.get("reason") for line in lines.entries[:2]] == ["no answer (request 0)", "who are you?"]
    assert [line.get("remedy") for line in lines.entries[:2]] == ["see its log", "set a password"]


def test_own_fault_logged_with_traceback(inbox: MemoryInbox, lines: Lines) -> None:
    """A fault of ours is told with its traceback and ends nothing."""
    watch = watching(
        inbox, odd=Scripted(KeyError("x"), KeyError("x"), KeyError("y"), []), ours=Scripted([make_delivery("a")])
    )
    for _ in range(4):
        watch.poll("odd")
    assert watch.poll("ours").new == 1
    assert [line["event"] for line in lines.entries] == ["away", "away", "there again", "found"]
    assert lines.entries[0]["reason"] == "a look at odd failed: KeyError: 'x'"
    assert "in poll\n" in lines.entries[0]["traceback"]


def test_full_look_goes_on_until_end(inbox: MemoryInbox) -> None:
    """A look at all that is there goes on until nothing more is."""
    poller = Scripted([make_delivery("a"), make_delivery("b")], [make_delivery("b"), make_delivery("c")], [], more=2)
    waited: list[float] = []
    looked = watching(inbox, ours=poller).poll_fully("ours", waited.append)
    assert (len(looked.identifiers), looked.new, len(poller.looks)) == (3, 3, 3)
    assert len(waited) == 2


def test_endless_queue_finally_left(inbox: MemoryInbox) -> None:
    """A queue that never ends is left in the end and not waited for."""
    poller = Scripted([make_delivery("a")], more=1000)
    poller.pause_seconds = 0
    waited: list[float] = []
    watching(inbox, ours=poller).poll_fully("ours", waited.append)
    assert len(poller.looks) == poller.most_polls
    assert waited == []


class Counted(threading.Event):
    """Notes for how long it was waited, and that it is time after some waits."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.waited: list[float | None] = []
        self._most = most

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout)
        return len(self.waited) >= self._most


def test_absent_registry_looked_at_rarely(inbox: MemoryInbox) -> None:
    """A registry is looked at in its pace, and more rarely while it is away."""
    away = [EnvironmentFault("no answer", remedy="wait")] * 8
    stop = Counted(12)
    watching(inbox, ours=Scripted([], *away, [])).follow("ours", stop)
    assert stop.waited == [7.0, 1, 2, 4, 8, 16, 32, 60, 60, 7.0, 7.0, 7.0]


def test_settling_change_looked_at_soon(inbox: MemoryInbox) -> None:
    """What has to settle is looked at again soon."""
    stop = Counted(4)
    watching(inbox, ours=Scripted([], more=2)).follow("ours", stop)
    assert stop.waited == [2.0, 2.0, 7.0, 7.0]


def test_watch_ends_begun_looks(inbox: MemoryInbox, lines: Lines) -> None:
    """A watch runs as long as it is waited for, and ends looks that have begun."""
    ours, slow = Scripted([make_delivery("a")]), BlockingPoller([make_delivery("b")])
    slow.cautions = ("some of it is not looked at",)

    def wait() -> str:
        assert ours.looked.wait(SECONDS)
        assert slow.looked.wait(SECONDS)
        threading.Timer(0, slow.go.set).start()
        return "told"

    assert watching(inbox, ours=ours, slow=slow).run(wait) == "told"
    assert {model for events in inbox.deliveries.values() for model in [events[0].model]} == {"a", "b"}
    assert slow.took_at == [1]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("watch ")]
    assert lines.entries[0]["reason"] == "some of it is not looked at"


def test_registries_wait_independently(inbox: MemoryInbox) -> None:
    """Registries do not wait for each other."""
    stuck, ours = BlockingPoller([]), Scripted([make_delivery("a")])

    def wait() -> None:
        assert stuck.looked.wait(SECONDS)
        assert ours.looked.wait(SECONDS)
        stuck.go.set()

    watching(inbox, stuck=stuck, ours=ours).run(wait)
    assert len(inbox.deliveries) == 1


class BlockingPoller(Scripted):
    """Answers when it may."""

    def __init__(self, *answers: Sequence[Delivery]) -> None:
        super().__init__(*answers)
        self.go = threading.Event()

    def poll(self, now: float) -> list[Delivery]:
        answer = super().poll(now)
        assert self.go.wait(SECONDS)
        return answer


def test_remembered_ids_bounded(inbox: MemoryInbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only so many IDs are remembered, and the inbox knows the others."""
    monkeypatch.setattr("plansmith.triggers.watch._MOST_KNOWN", 2)
    lookups: list[str] = []
    take: Callable[..., bool] = inbox.take

    def counted(registry: str, delivery: str, events: Sequence[Event]) -> bool:
        lookups.append(delivery)
        return take(registry, delivery, events)

    monkeypatch.setattr(inbox, "take", counted)
    watch = watching(inbox, ours=Scripted([tagged(model) for model in "abc"]))
    assert [watch.poll("ours").new for _ in range(3)] == [3, 0, 0]
    assert len(lookups) > 3
    assert len(inbox.deliveries) == 3
