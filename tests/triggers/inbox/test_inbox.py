"""Every delivery is kept once, and every entry is one worker's at a time, in the order of its model."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from plansmith.errors import EnvironmentFault
from plansmith.triggers.inbox import sql
from plansmith.triggers.inbox.entry import Delivery, InboxEntry, StartedRun
from plansmith.triggers.inbox.inbox import Inbox
from plansmith.triggers.registries.delivery import Event

from ...support.triggers.inboxes import LEASE, REGISTRY, Clock, created_event, event, opened


def _claimed(inbox: Inbox, clock: Clock, worker: str = "w") -> InboxEntry:
    entry = inbox.claim(worker, clock.now, LEASE)
    assert entry is not None
    return entry


def _models(inbox: Inbox, clock: Clock, number: int) -> list[str]:
    return [_claimed(inbox, clock).event.model for _ in range(number)]


def test_delivery_events_become_entries(inbox: Inbox, clock: Clock) -> None:
    """Each event of a delivery is an entry with all that it told."""
    events = [event("ranker", 3), event("encoder", 7)]
    assert inbox.take(REGISTRY, "d-1", events)
    newest, oldest = inbox.entries()
    assert [oldest.event, newest.event] == events
    assert (oldest.registry, oldest.delivery, oldest.state, oldest.attempts) == (REGISTRY, "d-1", "waiting", 0)
    assert oldest.content_key == events[0].content_key
    assert oldest.received_at == oldest.next_try_at == clock.now
    assert inbox.entry(oldest.id) == oldest
    assert inbox.entry(10**6) is None


def test_repeated_delivery_changes_nothing(inbox: Inbox) -> None:
    """A repeated delivery changes nothing, and another registry may use the same ID."""
    assert inbox.take(REGISTRY, "d-1", [event("ranker")])
    assert not inbox.take(REGISTRY, "d-1", [event("ranker"), event("encoder")])
    assert inbox.take("hub", "d-1", [])
    assert not inbox.take("hub", "d-1", [event("ranker")])
    assert [entry.event.model for entry in inbox.entries()] == ["ranker"]


def test_two_receivers_keep_delivery_once(url: str, inbox: Inbox) -> None:
    """Two receivers that get the same deliveries at once keep each once."""
    ids = [f"d-{number}" for number in range(40)]
    with opened(url) as second_inbox, ThreadPoolExecutor(8) as threads:
        both = [(delivery_id, box) for delivery_id in ids for box in (inbox, second_inbox)]
        results = list(threads.map(lambda it: it[1].take(REGISTRY, it[0], [event(it[0])]), both))
    assert sum(results) == len(ids)
    assert sorted(entry.delivery for entry in inbox.entries(limit=1000)) == sorted(ids)


def test_oldest_entry_first_per_model(inbox: Inbox, clock: Clock) -> None:
    """The oldest entry comes first, and one model is worked on once at a time."""
    inbox.take(REGISTRY, "d-1", [event("a", 1), event("a", 2), event("b", 1)])
    inbox.take(REGISTRY, "d-2", [event("a", 3)])
    first, next_entry = _claimed(inbox, clock), _claimed(inbox, clock)
    assert [first.event.label, next_entry.event.model] == [event("a", 1).label, "b"]
    assert inbox.claim("w", clock.now, LEASE) is None
    assert inbox.finish(first, [])
    second = _claimed(inbox, clock)
    assert second.event == event("a", 2)
    assert inbox.finish(second, [])
    assert _claimed(inbox, clock).event == event("a", 3)


def test_same_name_other_registry_differs(inbox: Inbox, clock: Clock) -> None:
    """The same model name in another registry is another model."""
    inbox.take(REGISTRY, "d-1", [event("a")])
    inbox.take("hub", "d-1", [event("a").model_copy(update={"registry": "hub"})])
    assert _models(inbox, clock, 2) == ["a", "a"]


def test_delayed_entry_blocks_own_model(inbox: Inbox, clock: Clock) -> None:
    """What is put off holds up its model alone, until its time comes."""
    inbox.take(REGISTRY, "d-1", [event("a", 1), event("a", 2), event("b")])
    first = _claimed(inbox, clock)
    assert inbox.postpone(first, "Prefect does not answer", clock.now + timedelta(minutes=5))
    assert _models(inbox, clock, 1) == ["b"]
    assert inbox.claim("w", clock.go(minutes=4), LEASE) is not None, "b, whose lease has run out"
    assert inbox.claim("w", clock.now, LEASE) is None
    clock.go(minutes=1)
    again = _claimed(inbox, clock)
    assert (again.event, again.attempts, again.reason) == (event("a", 1), 2, "Prefect does not answer")


def test_clock_set_back_holds_nothing_up(inbox: Inbox, clock: Clock) -> None:
    """What came, was put off or was leased before the clock was set back is due at once."""
    for name in "abc":
        inbox.take(REGISTRY, f"d-{name}", [event(name)])
    _claimed(inbox, clock)
    assert inbox.postpone(_claimed(inbox, clock), "Prefect does not answer", clock.now + timedelta(minutes=5))
    clock.go(days=-1)
    assert _models(inbox, clock, 3) == ["a", "b", "c"]
    assert inbox.claim("w", clock.now, LEASE) is None


def test_entry_aside_blocks_nothing(inbox: Inbox, clock: Clock) -> None:
    """What is set aside does not hold up its model."""
    inbox.take(REGISTRY, "d-1", [event("a", 1), event("a", 2)])
    assert inbox.set_aside(_claimed(inbox, clock), "no rule builds it")
    assert _claimed(inbox, clock).event == event("a", 2)
    aside = inbox.entries(state="set-aside")[0]
    assert (aside.reason, aside.settled_at, aside.worker) == ("no rule builds it", clock.now, "")


def test_done_entry_says_outcome(inbox: Inbox, clock: Clock) -> None:
    """An entry that is done says what it became."""
    inbox.take(REGISTRY, "d-1", [event("a")])
    runs = (StartedRun(id="r-1", address="http://prefect/runs/r-1"), StartedRun(id="r-2"))
    mine = _claimed(inbox, clock, "worker-1")
    assert (mine.worker, mine.lease_until) == ("worker-1", clock.now + timedelta(seconds=LEASE))
    assert inbox.finish(mine, runs)
    done = inbox.entries()[0]
    assert (done.state, done.runs, done.settled_at, done.lease) == ("done", runs, clock.now, "")
    assert inbox.claim("w", clock.go(days=1), LEASE) is None


def test_dead_worker_entry_passes_on(inbox: Inbox, clock: Clock) -> None:
    """What a dead worker had is another's when its lease has run out."""
    inbox.take(REGISTRY, "d-1", [event("a")])
    _claimed(inbox, clock, "dead")
    assert inbox.claim("w", clock.go(seconds=LEASE - 1), LEASE) is None
    clock.go(seconds=1)
    again = _claimed(inbox, clock, "alive")
    assert (again.worker, again.attempts) == ("alive", 2)


@pytest.mark.parametrize("how", ["finish", "postpone", "set_aside"])
def test_worker_without_lease_changes_nothing(how: str, inbox: Inbox, clock: Clock) -> None:
    """A worker whose lease another has changes nothing."""
    inbox.take(REGISTRY, "d-1", [event("a")])
    slow = _claimed(inbox, clock, "same name")
    clock.go(seconds=LEASE)
    own = _claimed(inbox, clock, "same name")
    late = {
        "finish": lambda: inbox.finish(slow, [StartedRun(id="late")]),
        "postpone": lambda: inbox.postpone(slow, "late", clock.now),
        "set_aside": lambda: inbox.set_aside(slow, "late"),
    }
    assert not late[how]()
    assert inbox.entries() == (own,)
    assert inbox.finish(own, [])
    assert not late[how]()
    assert inbox.entries()[0].reason == ""


def test_entry_aside_returns_before_younger(inbox: Inbox, clock: Clock) -> None:
    """What was set aside comes again before younger entries, and not beside one."""
    inbox.take(REGISTRY, "d-1", [event("a", 1), event("a", 2), event("a", 3)])
    assert inbox.set_aside(first := _claimed(inbox, clock), "poison")
    second = _claimed(inbox, clock)
    assert inbox.retry(first.id) == (first.id,)
    assert inbox.claim("w", clock.now, LEASE) is None
    inbox.finish(second, [])
    again = _claimed(inbox, clock)
    assert (again.event, again.attempts) == (event("a", 1), 1)


def test_retry_spares_work_in_progress(inbox: Inbox, clock: Clock) -> None:
    """A person retries what waits or is done, and not what is in work."""
    inbox.take(REGISTRY, "d-1", [event("a"), event("b"), event("c")])
    put_off, in_work, done = (_claimed(inbox, clock) for _ in range(3))
    inbox.postpone(put_off, "later", clock.now + timedelta(days=1))
    inbox.finish(done, [StartedRun(id="r-1")])
    assert inbox.retry(put_off.id, in_work.id, done.id, 10**6) == (put_off.id, done.id)
    assert _claimed(inbox, clock).id == put_off.id
    again = _claimed(inbox, clock)
    assert (again.id, again.runs) == (done.id, (StartedRun(id="r-1"),)), "what it became before is known"
    clock.go(seconds=LEASE)
    assert inbox.states(in_work.id) == {in_work.id: "waiting"}, "its worker has died"
    assert inbox.retry(in_work.id) == (in_work.id,)


def test_renewed_lease_holds_longer(inbox: Inbox, clock: Clock) -> None:
    """A lease that is renewed holds for longer, and one that others have taken does not."""
    inbox.take(REGISTRY, "d-1", [event("a")])
    first = _claimed(inbox, clock)
    assert inbox.renew(first, clock.go(seconds=LEASE - 1), LEASE)
    assert inbox.claim("other", clock.go(seconds=LEASE - 1), LEASE) is None
    second = inbox.claim("other", clock.go(seconds=1), LEASE)
    assert second is not None
    assert not inbox.renew(first, clock.now, LEASE)
    assert inbox.finish(second, [])


def test_recurrence_is_repetition_until_news(inbox: Inbox) -> None:
    """What recurs is a repetition until something else was told of the same."""
    first, second, tag = event("a", 3), event("a", 4), event("a", 3).model_copy(update={"value": "challenger"})
    back, away = (Delivery(REGISTRY, f"to-{item.version}", (item,), recurs=True) for item in (first, second))
    deliveries = [back, back, away, back, back, away, away]
    assert [inbox.take_all([item])[0] for item in deliveries] == [True, False, True, True, False, True, False]
    assert [entry.event.version for entry in inbox.entries()[::-1]] == ["3", "4", "3", "4"]
    both = Delivery(REGISTRY, "both", (first, tag), recurs=True)
    assert inbox.take_all([both, both]) == [True, False]
    inbox.take_all([away])
    assert inbox.take_all([both]) == [True]
    assert [entry.event for entry in inbox.entries()[:4]] == [first, second, tag, first]


def test_simultaneous_recurrence_kept_once(url: str, inbox: Inbox) -> None:
    """What recurs and comes to several receivers at once is kept once."""
    back = Delivery(REGISTRY, "to-3", (event("a", 3),), recurs=True)
    inbox.take_all([back])
    inbox.take(REGISTRY, "to-4", [event("a", 4)])
    with opened(url) as second_inbox, ThreadPoolExecutor(8) as pool:
        new = list(pool.map(lambda box: box.take_all([back])[0], [inbox, second_inbox] * 8))
    assert new.count(True) == 1
    assert len(inbox.entries()) == 3


def test_dropped_delivery_stays_known(inbox: Inbox, clock: Clock) -> None:
    """What is dropped is gone and its delivery stays known."""
    inbox.take(REGISTRY, "d-1", [event("a"), event("b")])
    in_work = _claimed(inbox, clock)
    waiting = next(entry for entry in inbox.entries() if entry.id != in_work.id)
    assert inbox.drop(in_work.id, waiting.id) == (waiting.id,)
    assert not inbox.take(REGISTRY, "d-1", [event("b")])
    assert [entry.id for entry in inbox.entries()] == [in_work.id]
    clock.go(seconds=LEASE)
    assert inbox.drop(in_work.id) == (in_work.id,)


def test_pruning_forgets_old_done_only(inbox: Inbox, clock: Clock) -> None:
    """Pruning forgets what was done long ago and nothing else."""
    inbox.take(REGISTRY, "old", [created_event("a"), created_event("b"), created_event("c")])
    inbox.finish(_claimed(inbox, clock), [])
    inbox.set_aside(_claimed(inbox, clock), "poison")
    clock.go(days=2)
    inbox.take(REGISTRY, "young", [created_event("d")])
    inbox.finish(_claimed(inbox, clock), [])
    assert inbox.count_old(clock.now - timedelta(days=1)) == 1
    assert inbox.prune(clock.now - timedelta(days=1)) == 1
    assert inbox.count_old(clock.now - timedelta(days=1)) == 0
    assert inbox.counts() == {"waiting": 1, "in-work": 0, "done": 1, "set-aside": 1}


def test_delivery_known_without_entries(inbox: Inbox, clock: Clock) -> None:
    """A delivery stays known though its entries are gone."""
    inbox.take(REGISTRY, "d-1", [created_event("a")])
    inbox.finish(_claimed(inbox, clock), [])
    assert inbox.prune(clock.go(days=1000)) == 1
    assert not inbox.take(REGISTRY, "d-1", [created_event("a")])


def test_expired_delivery_forgotten(inbox: Inbox, clock: Clock) -> None:
    """A delivery that is too old to be taken is forgotten, and none that may come again."""
    signed, unsigned = (
        Delivery(REGISTRY, name, (created_event(name),), expires=name == "signed") for name in ("signed", "found")
    )
    inbox.take_all([signed, unsigned])
    clock.go(days=6)
    inbox.prune(clock.now)
    assert inbox.take_all([signed, unsigned]) == [False, False], "a replay could still be within its window"
    clock.go(days=2)
    inbox.prune(clock.now - timedelta(days=30))
    assert inbox.take_all([signed, unsigned]) == [False, False], "a person asked for what is older"
    inbox.prune(clock.now)
    assert inbox.take_all([signed, unsigned]) == [True, False]


def test_inbox_tells_size_and_age(inbox: Inbox, clock: Clock) -> None:
    """An inbox says how much it holds and how long the oldest has waited."""
    assert inbox.oldest_waiting(clock.now) is None
    inbox.take(REGISTRY, "d-1", [event("a")])
    clock.go(minutes=1)
    inbox.take(REGISTRY, "d-2", [event("b")])
    assert inbox.oldest_waiting(clock.go(minutes=1)) == 120
    _claimed(inbox, clock)
    assert inbox.oldest_waiting(clock.now) == 60
    assert inbox.counts() == {"waiting": 1, "in-work": 1, "done": 0, "set-aside": 0}


def test_newest_entries_listed_by_state(inbox: Inbox, clock: Clock) -> None:
    """The newest entries of a state and of a registry are listed."""
    inbox.take(REGISTRY, "d-1", [event("a"), event("b")])
    inbox.take("hub", "d-1", [event("c")])
    inbox.finish(_claimed(inbox, clock), [])

    def models(**filters: object) -> list[str]:
        return [entry.event.model for entry in inbox.entries(**filters)]  # type: ignore[arg-type]

    assert models(limit=2) == ["c", "b"]
    assert models(state="waiting") == ["c", "b"]
    assert models(registry=REGISTRY) == ["b", "a"]
    assert models(state="done", registry="hub") == []


@pytest.mark.parametrize("delivery", ["x" * 100_000, "nul\0", "half \ud800", "", "ümläut/'; DROP TABLE"], ids=repr)
def test_any_text_identifies_delivery(delivery: str, inbox: Inbox) -> None:
    """Any text may be the ID of a delivery."""
    assert inbox.take(REGISTRY, delivery, [event("a")])
    assert not inbox.take(REGISTRY, delivery, [event("a")])
    assert len(inbox.entries()[0].delivery) <= 200


def test_odd_names_and_reasons_kept(inbox: Inbox, clock: Clock) -> None:
    """Odd names and reasons are kept."""
    odd = event("n\0ul/\u202eümläut'; --")
    inbox.take(REGISTRY, "d-1", [odd])
    mine = _claimed(inbox, clock, "worker\0\ud800")
    assert mine.event == odd
    assert inbox.set_aside(mine, "why\0\ud800\n" + "x" * 10_000)
    assert inbox.entries()[0].reason.startswith("why?\nxxx")


def test_unreadable_entry_set_aside(url: str, inbox: Inbox, clock: Clock) -> None:
    """An entry that cannot be read is set aside and the next one comes."""
    import sqlalchemy as sa

    inbox.take(REGISTRY, "d-1", [event("a"), event("b")])
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE plansmith_entries SET event = '{}' WHERE id = 1")
    engine.dispose()
    assert _claimed(inbox, clock).event.model == "b"
    assert inbox.states(1) == {1: "set-aside"}
    with pytest.raises(EnvironmentFault, match=r"entry 1 .*cannot be read") as refused:
        inbox.entries()
    assert "inbox drop 1 --yes" in refused.value.remedy
    assert inbox.drop(1) == (1,)
    assert len(inbox.entries()) == 1


def test_event_change_raises_table_version() -> None:
    """Older workers refuse a newer inbox, and need not guess at fields that they do not know."""
    assert sql.SCHEMA == 4
    assert set(StartedRun.model_fields) == {"id", "address", "model", "target"}
    assert set(Event.model_fields) == {"registry", "model", "version", "change", "value", "source", "at", "wrong"}


def test_begun_entry_known_until_retry(inbox: Inbox, clock: Clock) -> None:
    """What has begun is known while the rest waits, and is what a person found wanting when it is retried."""
    first, second, anew = (StartedRun(id=name, model=name[0], target="t") for name in ("a1", "b1", "a2"))
    inbox.take(REGISTRY, "d-1", [event("m")])
    assert inbox.postpone(_claimed(inbox, clock), "b waits", clock.now, started=[first])
    assert (inbox.entries()[0].runs, inbox.entries()[0].started) == ((), (first,))
    assert inbox.postpone(_claimed(inbox, clock), "away", clock.now)
    assert inbox.entries()[0].known_runs == (first,)
    assert inbox.set_aside(_claimed(inbox, clock), "poison", started=[first, second])
    assert (inbox.entries()[0].runs, inbox.entries()[0].started) == ((), (first, second))
    assert inbox.retry(1)
    assert (inbox.entries()[0].runs, inbox.entries()[0].started, inbox.entries()[0].reason) == ((first, second), (), "")
    assert inbox.postpone(_claimed(inbox, clock), "b waits", clock.now, started=[anew])
    assert (inbox.entries()[0].runs, inbox.entries()[0].started) == ((first, second), (anew, second))
    assert inbox.finish(_claimed(inbox, clock), [anew])
    assert (inbox.entries()[0].runs, inbox.entries()[0].started) == ((anew,), ())


def test_newest_topic_entry_stays_known(inbox: Inbox, clock: Clock) -> None:
    """The newest of a topic is known and stays when old entries go."""
    challenger = event("a", 9).model_copy(update={"value": "challenger"})
    for number, item in enumerate((event("a", 3), event("a", 4), challenger, event("b", 7))):
        inbox.take(REGISTRY, f"d-{number}", [item])
        assert inbox.finish(_claimed(inbox, clock), [StartedRun(id=f"run-{number}")])
    assert inbox.youngest(event("a", 3)) == (2, event("a", 4).content_key)
    assert inbox.youngest(challenger) == (3, challenger.content_key)
    assert inbox.youngest(event("c")) is None
    assert inbox.newest() == 4
    before = clock.go(days=1)
    assert inbox.count_old(before) == inbox.prune(before) == 1
    assert [entry.id for entry in inbox.entries()] == [4, 3, 2]


def test_outdated_entry_is_no_known_state(inbox: Inbox, clock: Clock) -> None:
    """What the registry denied is news when it holds after all, by a poll and by a delivery that recurs."""
    late = Delivery(REGISTRY, "d-late", (event("a", 3),), recurs=True)
    assert inbox.take_all([late]) == [True]
    assert inbox.finish(_claimed(inbox, clock), (), reason="the registry says otherwise")
    assert inbox.youngest(event("a", 3)) == (1, "")
    assert [inbox.take_all([late]), inbox.take_all([late])] == [[True], [False]]
    assert inbox.youngest(event("a", 3)) == (2, event("a", 3).content_key)
