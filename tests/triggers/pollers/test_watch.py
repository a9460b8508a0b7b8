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
from plansmith.triggers.registries.delivery import Delivery
from plansmith.triggers.registries.event import Event
from plansmith.triggers.watch import LOG, Watch, WatchLog

from ...support.deliveries.receiving import MemoryInbox
from ...support.waiting import SECONDS

NOW = 1795165608.0


def found(model: str, version: str = "1") -> Delivery:
    return polled(Event(registry="ours", model=model, version=version, change="alias", value="champion"))


def tagged(model: str, version: str = "1") -> Delivery:
    return polled(Event(registry="ours", model=model, version=version, change="tag", value="compile=requested"))


class Scripted(Poller):
    """Tells in turn what it was given, and the last of it for ever; notes when it may forget."""

    pause_seconds = 7.0
    most_polls = 5

    def __init__(self, *told: Sequence[Delivery] | Exception, more: int = 0) -> None:
        self._told = list(told)
        self._more = more
        self.looks: list[float] = []
        self.took_at: list[int] = []
        self.took_fault: PlansmithError | None = None
        self.looked = threading.Event()

    def poll(self, now: float) -> list[Delivery]:
        self.looks.append(now)
        self.has_more = len(self.looks) <= self._more
        told = self._told.pop(0) if len(self._told) > 1 else self._told[0]
        self.looked.set()
        if isinstance(told, Exception):
            raise told
        return list(told)

    def acknowledge(self) -> None:
        if self.took_fault is not None:
            raise self.took_fault
        self.took_at.append(len(self.looks))


class Lines(logging.Handler):
    """What was said, as documents."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(json.loads(record.getMessage()))

    @property
    def events(self) -> list[tuple[str, str]]:
        return [(one["registry"], one["event"]) for one in self.said]


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


def test_what_is_there_is_kept_once_and_said_once(inbox: MemoryInbox, lines: Lines) -> None:
    poller = Scripted([found("a"), found("b")])
    watch = watching(inbox, ours=poller)
    first, second = watch.poll("ours"), watch.poll("ours")
    assert (len(first.seen), first.new, first.fault) == (2, 2, None)
    assert (len(second.seen), second.new) == (2, 0)
    assert set(inbox.kept) == {("ours", found("a").id), ("ours", found("b").id)}
    assert lines.events == [("ours", "found")] * 2
    assert lines.said[0]["what"] == "a, version 1 (alias champion)"
    assert poller.looks == [NOW, NOW]


def test_what_an_alias_stands_for_again_is_told_again_and_once(inbox: MemoryInbox) -> None:
    versions = ["3", "4", "3", "3", "4"]
    looks = [[found("a", version)] for version in versions]
    first = watching(inbox, ours=Scripted(*looks))
    assert [first.poll("ours").new for _ in versions] == [1, 1, 1, 0, 1]
    assert watching(inbox, ours=Scripted(*looks[-1:])).poll("ours").new == 0, "another process begins"


def test_two_that_see_the_same_change_at_once_tell_one(inbox: MemoryInbox, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("3", "4"):
        inbox.take("ours", found("a", version).id, found("a", version).events)
    both = [watching(inbox, ours=Scripted([found("a", "3")])) for _ in range(2)]
    monkeypatch.setattr(inbox, "youngest", partial(lambda youngest, _: youngest, inbox.youngest(found("a").events[0])))
    assert [one.poll("ours").new for one in both] == [1, 0]
    assert len(inbox.kept) == 3


def test_what_a_webhook_told_last_is_not_told_again_and_what_it_did_not_tell_is(inbox: MemoryInbox) -> None:
    watch = watching(inbox, ours=Scripted([found("a", "4")], [found("a", "3")]))
    inbox.take("ours", "of a webhook", found("a", "4").events)
    assert [watch.poll("ours").new, watch.poll("ours").new] == [0, 1]


class Slow(Scripted):
    """While it looks for the first time, something else happens."""

    def __init__(self, meanwhile: Callable[[], object], *told: Sequence[Delivery]) -> None:
        super().__init__(*told)
        self._meanwhile = meanwhile

    def poll(self, now: float) -> list[Delivery]:
        if not self.looks:
            self._meanwhile()
        return super().poll(now)


def test_what_a_webhook_told_during_a_look_is_not_overtaken_by_it(inbox: MemoryInbox) -> None:
    def moved() -> None:
        inbox.take("ours", "of a webhook", found("a", "4").events)

    poller = Slow(moved, [found("a", "3"), found("b")], [found("a", "4"), found("b")])
    watch = watching(inbox, ours=poller)
    looked = watch.poll("ours")
    assert (looked.new, looked.is_overtaken, poller.took_at) == (1, True, [])
    looked = watch.poll("ours")
    assert (looked.new, looked.is_overtaken, poller.took_at) == (0, False, [2])
    assert inbox.youngest(found("a").events[0]) == (0, found("a", "4").events[0].content_key)


def test_what_changed_during_a_look_is_looked_at_again_soon(inbox: MemoryInbox) -> None:
    numbers = iter("56")

    def moved() -> None:
        number = next(numbers)
        inbox.take("ours", number, found("a", number).events)

    poller = Slow(moved, [found("a", "3")])
    poller.most_polls = 1
    waited: list[float] = []
    assert watching(inbox, ours=poller).poll_fully("ours", waited.append).new == 1
    assert waited == [2.0]
    stop = Counted(2)
    watching(inbox, ours=Slow(moved, [found("a", "3")])).follow("ours", stop)
    assert stop.waited == [2.0, 7.0]


def test_a_tag_stays_beside_others_and_is_told_once(inbox: MemoryInbox) -> None:
    watch = watching(inbox, ours=Scripted([tagged("a", "3"), tagged("a", "4")]))
    assert [watch.poll("ours").new for _ in range(3)] == [2, 0, 0]


def test_what_another_process_kept_is_not_said_again(inbox: MemoryInbox, lines: Lines) -> None:
    inbox.take("ours", found("a").id, found("a").events)
    assert watching(inbox, ours=Scripted([found("a")])).poll("ours").new == 0
    assert lines.said == []


def test_a_registry_may_forget_what_is_kept_and_nothing_before(inbox: MemoryInbox, lines: Lines) -> None:
    poller = Scripted([found("a"), found("b")])
    watch = watching(inbox, ours=poller)
    inbox.fault = EnvironmentFault("the disk is full", remedy="free some space", transient=True)
    assert watch.poll("ours").fault is inbox.fault
    assert poller.took_at == []
    inbox.fault = None
    assert watch.poll("ours").new == 2
    assert poller.took_at == [2]
    assert lines.events == [("ours", "away"), ("ours", "found"), ("ours", "found"), ("ours", "there again")]


def test_what_could_not_be_deleted_comes_again_and_is_not_kept_twice(inbox: MemoryInbox) -> None:
    poller = Scripted([found("a")])
    poller.took_fault = EnvironmentFault("no answer", remedy="wait", transient=True)
    watch = watching(inbox, ours=poller)
    assert watch.poll("ours").fault is poller.took_fault
    poller.took_fault = None
    assert watch.poll("ours").new == 0
    assert len(inbox.kept) == 1


def test_a_registry_that_goes_and_comes_is_said_once_each(inbox: MemoryInbox, lines: Lines) -> None:
    away = [EnvironmentFault(f"no answer (request {number})", remedy="see its log") for number in range(3)]
    refused = EnvironmentFault("who are you?", remedy="set a password")
    watch = watching(inbox, ours=Scripted([], *away, refused, refused, [], [], away[0], []))
    for _ in range(10):
        watch.poll("ours")
    assert [line["event"] for line in lines.said] == ["away", "away", "there again", "away", "there again"]
    assert [line.get("reason") for line in lines.said[:2]] == ["no answer (request 0)", "who are you?"]
    assert [line.get("remedy") for line in lines.said[:2]] == ["see its log", "set a password"]


def test_a_fault_of_ours_is_said_with_its_traceback_and_ends_nothing(inbox: MemoryInbox, lines: Lines) -> None:
    watch = watching(inbox, odd=Scripted(KeyError("x"), KeyError("x"), KeyError("y"), []), ours=Scripted([found("a")]))
    for _ in range(4):
        watch.poll("odd")
    assert watch.poll("ours").new == 1
    assert [line["event"] for line in lines.said] == ["away", "away", "there again", "found"]
    assert lines.said[0]["reason"] == "a look at odd failed: KeyError: 'x'"
    assert "in poll\n" in lines.said[0]["traceback"]


def test_a_look_at_all_that_is_there_goes_on_until_nothing_more_is(inbox: MemoryInbox) -> None:
    poller = Scripted([found("a"), found("b")], [found("b"), found("c")], [], more=2)
    waited: list[float] = []
    looked = watching(inbox, ours=poller).poll_fully("ours", waited.append)
    assert (len(looked.seen), looked.new, len(poller.looks)) == (3, 3, 3)
    assert len(waited) == 2


def test_a_queue_that_never_ends_is_left_in_the_end_and_not_waited_for(inbox: MemoryInbox) -> None:
    poller = Scripted([found("a")], more=1000)
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


def test_a_registry_is_looked_at_in_its_pace_and_rarer_while_it_is_away(inbox: MemoryInbox) -> None:
    away = [EnvironmentFault("no answer", remedy="wait")] * 8
    stop = Counted(12)
    watching(inbox, ours=Scripted([], *away, [])).follow("ours", stop)
    assert stop.waited == [7.0, 1, 2, 4, 8, 16, 32, 60, 60, 7.0, 7.0, 7.0]


def test_what_has_to_settle_is_looked_at_again_soon(inbox: MemoryInbox) -> None:
    stop = Counted(4)
    watching(inbox, ours=Scripted([], more=2)).follow("ours", stop)
    assert stop.waited == [2.0, 2.0, 7.0, 7.0]


def test_it_runs_as_long_as_it_is_waited_for_and_ends_looks_that_have_begun(inbox: MemoryInbox, lines: Lines) -> None:
    ours, slow = Scripted([found("a")]), Held([found("b")])
    slow.cautions = ("some of it is not looked at",)

    def wait() -> str:
        assert ours.looked.wait(SECONDS)
        assert slow.looked.wait(SECONDS)
        threading.Timer(0, slow.go.set).start()
        return "told"

    assert watching(inbox, ours=ours, slow=slow).run(wait) == "told"
    assert {model for events in inbox.kept.values() for model in [events[0].model]} == {"a", "b"}
    assert slow.took_at == [1]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("watch ")]
    assert lines.said[0]["reason"] == "some of it is not looked at"


def test_registries_do_not_wait_for_each_other(inbox: MemoryInbox) -> None:
    stuck, ours = Held([]), Scripted([found("a")])

    def wait() -> None:
        assert stuck.looked.wait(SECONDS)
        assert ours.looked.wait(SECONDS)
        stuck.go.set()

    watching(inbox, stuck=stuck, ours=ours).run(wait)
    assert len(inbox.kept) == 1


class Held(Scripted):
    """Answers when it may."""

    def __init__(self, *told: Sequence[Delivery]) -> None:
        super().__init__(*told)
        self.go = threading.Event()

    def poll(self, now: float) -> list[Delivery]:
        answer = super().poll(now)
        assert self.go.wait(SECONDS)
        return answer


def test_only_so_many_ids_are_remembered_and_the_inbox_knows_the_others(
    inbox: MemoryInbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plansmith.triggers.watch._MOST_KNOWN", 2)
    asked: list[str] = []
    take: Callable[..., bool] = inbox.take

    def counted(registry: str, delivery: str, events: Sequence[Event]) -> bool:
        asked.append(delivery)
        return take(registry, delivery, events)

    monkeypatch.setattr(inbox, "take", counted)
    watch = watching(inbox, ours=Scripted([tagged(model) for model in "abc"]))
    assert [watch.poll("ours").new for _ in range(3)] == [3, 0, 0]
    assert len(asked) > 3
    assert len(inbox.kept) == 3
