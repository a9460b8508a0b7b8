"""Every delivery is kept once, and every entry is one worker's at a time, in the order of its model."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from plansmith.errors import EnvironmentFault
from plansmith.triggers.inbox import sql
from plansmith.triggers.inbox.entry import Entry, StartedRun
from plansmith.triggers.inbox.inbox import DELIVERY_DAYS, Inbox
from plansmith.triggers.registries.event import Event

from ..support.triggers.inboxes import LEASE, REGISTRY, Clock, event, opened


def _claimed(inbox: Inbox, clock: Clock, worker: str = "w") -> Entry:
    found = inbox.claim(worker, clock.now, LEASE)
    assert found is not None
    return found


def _models(inbox: Inbox, clock: Clock, number: int) -> list[str]:
    return [_claimed(inbox, clock).event.model for _ in range(number)]


def test_each_event_of_a_delivery_is_an_entry_with_all_that_it_told(inbox: Inbox, clock: Clock) -> None:
    told = [event("ranker", 3), event("encoder", 7)]
    assert inbox.take(REGISTRY, "d-1", told)
    newest, oldest = inbox.entries()
    assert [oldest.event, newest.event] == told
    assert (oldest.registry, oldest.delivery, oldest.state, oldest.attempts) == (REGISTRY, "d-1", "waiting", 0)
    assert oldest.content_key == told[0].content_key
    assert oldest.received_at == oldest.next_try_at == clock.now
    assert inbox.entry(oldest.id) == oldest
    assert inbox.entry(10**6) is None


def test_a_repeated_delivery_changes_nothing_and_another_registry_may_use_the_same_id(inbox: Inbox) -> None:
    assert inbox.take(REGISTRY, "d-1", [event("ranker")])
    assert not inbox.take(REGISTRY, "d-1", [event("ranker"), event("encoder")])
    assert inbox.take("hub", "d-1", [])
    assert not inbox.take("hub", "d-1", [event("ranker")])
    assert [entry.event.model for entry in inbox.entries()] == ["ranker"]


def test_two_receivers_that_get_the_same_deliveries_at_once_keep_each_once(url: str, inbox: Inbox) -> None:
    ids = [f"d-{number}" for number in range(40)]
    with opened(url) as other, ThreadPoolExecutor(8) as threads:
        both = [(one, box) for one in ids for box in (inbox, other)]
        taken = list(threads.map(lambda it: it[1].take(REGISTRY, it[0], [event(it[0])]), both))
    assert sum(taken) == len(ids)
    assert sorted(entry.delivery for entry in inbox.entries(limit=1000)) == sorted(ids)


def test_the_oldest_entry_comes_first_and_one_model_is_worked_on_once_at_a_time(inbox: Inbox, clock: Clock) -> None:
    inbox.take(REGISTRY, "d-1", [event("a", 1), event("a", 2), event("b", 1)])
    inbox.take(REGISTRY, "d-2", [event("a", 3)])
    first, other = _claimed(inbox, clock), _claimed(inbox, clock)
    assert [first.event.words, other.event.model] == [event("a", 1).words, "b"]
    assert inbox.claim("w", clock.now, LEASE) is None
    assert inbox.finish(first, [])
    second = _claimed(inbox, clock)
    assert second.event == event("a", 2)
    assert inbox.finish(second, [])
    assert _claimed(inbox, clock).event == event("a", 3)


def test_the_same_model_name_in_another_registry_is_another_model(inbox: Inbox, clock: Clock) -> None:
    inbox.take(REGISTRY, "d-1", [event("a")])
    inbox.take("hub", "d-1", [event("a").model_copy(update={"registry": "hub"})])
    assert _models(inbox, clock, 2) == ["a", "a"]


def test_what_is_put_off_holds_up_its_model_alone_until_its_time_comes(inbox: Inbox, clock: Clock) -> None:
    inbox.take(REGISTRY, "d-1", [event("a", 1), event("a", 2), event("b")])
    first = _claimed(inbox, clock)
    assert inbox.postpone(first, "Prefect does not answer", clock.now + timedelta(minutes=5))
    assert _models(inbox, clock, 1) == ["b"]
    assert inbox.claim("w", clock.go(minutes=4), LEASE) is not None, "b, whose lease has run out"
    assert inbox.claim("w", clock.now, LEASE) is None
    clock.go(minutes=1)
    again = _claimed(inbox, clock)
    assert (again.event, again.attempts, again.reason) == (event("a", 1), 2, "Prefect does not answer")


def test_what_is_set_aside_does_not_hold_up_its_model(inbox: Inbox, clock: Clock) -> None:
    inbox.take(REGISTRY, "d-1", [event("a", 1), event("a", 2)])
    assert inbox.set_aside(_claimed(inbox, clock), "no rule builds it")
    assert _claimed(inbox, clock).event == event("a", 2)
    aside = inbox.entries(state="set-aside")[0]
    assert (aside.reason, aside.settled_at, aside.worker) == ("no rule builds it", clock.now, "")


def test_an_entry_that_is_done_says_what_it_became(inbox: Inbox, clock: Clock) -> None:
    inbox.take(REGISTRY, "d-1", [event("a")])
    runs = (StartedRun(id="r-1", address="http://prefect/runs/r-1"), StartedRun(id="r-2"))
    mine = _claimed(inbox, clock, "worker-1")
    assert (mine.worker, mine.lease_until) == ("worker-1", clock.now + timedelta(seconds=LEASE))
    assert inbox.finish(mine, runs)
    done = inbox.entries()[0]
    assert (done.state, done.runs, done.settled_at, done.lease) == ("done", runs, clock.now, "")
    assert inbox.claim("w", clock.go(days=1), LEASE) is None


def test_what_a_dead_worker_had_is_anothers_when_its_lease_has_run_out(inbox: Inbox, clock: Clock) -> None:
    inbox.take(REGISTRY, "d-1", [event("a")])
    _claimed(inbox, clock, "dead")
    assert inbox.claim("w", clock.go(seconds=LEASE - 1), LEASE) is None
    clock.go(seconds=1)
    again = _claimed(inbox, clock, "alive")
    assert (again.worker, again.attempts) == ("alive", 2)


@pytest.mark.parametrize("how", ["finish", "postpone", "set_aside"])
def test_a_worker_whose_lease_another_has_changes_nothing(how: str, inbox: Inbox, clock: Clock) -> None:
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


def test_what_was_set_aside_comes_again_before_younger_entries_and_not_beside_one(inbox: Inbox, clock: Clock) -> None:
    inbox.take(REGISTRY, "d-1", [event("a", 1), event("a", 2), event("a", 3)])
    assert inbox.set_aside(first := _claimed(inbox, clock), "poison")
    second = _claimed(inbox, clock)
    assert inbox.retry(first.id) == (first.id,)
    assert inbox.claim("w", clock.now, LEASE) is None
    inbox.finish(second, [])
    again = _claimed(inbox, clock)
    assert (again.event, again.attempts) == (event("a", 1), 1)


def test_a_person_retries_what_waits_and_neither_what_is_in_work_nor_what_is_done(inbox: Inbox, clock: Clock) -> None:
    inbox.take(REGISTRY, "d-1", [event("a"), event("b"), event("c")])
    put_off, in_work, done = (_claimed(inbox, clock) for _ in range(3))
    inbox.postpone(put_off, "later", clock.now + timedelta(days=1))
    inbox.finish(done, [])
    assert inbox.retry(put_off.id, in_work.id, done.id, 10**6) == (put_off.id,)
    assert _claimed(inbox, clock).id == put_off.id
    clock.go(seconds=LEASE)
    assert inbox.states(in_work.id) == {in_work.id: "waiting"}, "its worker has died"
    assert inbox.retry(in_work.id) == (in_work.id,)


def test_what_is_dropped_is_gone_and_its_delivery_stays_known(inbox: Inbox, clock: Clock) -> None:
    inbox.take(REGISTRY, "d-1", [event("a"), event("b")])
    in_work = _claimed(inbox, clock)
    waiting = next(entry for entry in inbox.entries() if entry.id != in_work.id)
    assert inbox.drop(in_work.id, waiting.id) == (waiting.id,)
    assert not inbox.take(REGISTRY, "d-1", [event("b")])
    assert [entry.id for entry in inbox.entries()] == [in_work.id]
    clock.go(seconds=LEASE)
    assert inbox.drop(in_work.id) == (in_work.id,)


def test_pruning_forgets_what_was_done_long_ago_and_nothing_else(inbox: Inbox, clock: Clock) -> None:
    inbox.take(REGISTRY, "old", [event("a"), event("b"), event("c")])
    inbox.finish(_claimed(inbox, clock), [])
    inbox.set_aside(_claimed(inbox, clock), "poison")
    clock.go(days=2)
    inbox.take(REGISTRY, "young", [event("d")])
    inbox.finish(_claimed(inbox, clock), [])
    assert inbox.prune(clock.now - timedelta(days=1)) == 1
    assert inbox.counts() == {"waiting": 1, "in-work": 0, "done": 1, "set-aside": 1}


def test_a_delivery_is_known_for_thirty_days_though_its_entries_are_gone(inbox: Inbox, clock: Clock) -> None:
    inbox.take(REGISTRY, "d-1", [event("a")])
    inbox.finish(_claimed(inbox, clock), [])
    assert inbox.prune(clock.go(days=DELIVERY_DAYS)) == 1
    assert not inbox.take(REGISTRY, "d-1", [event("a")])
    assert inbox.prune(clock.go(seconds=1)) == 0
    assert inbox.take(REGISTRY, "d-1", [event("a")])


def test_an_inbox_says_how_much_it_holds_and_how_long_the_oldest_has_waited(inbox: Inbox, clock: Clock) -> None:
    assert inbox.oldest_waiting(clock.now) is None
    inbox.take(REGISTRY, "d-1", [event("a")])
    clock.go(minutes=1)
    inbox.take(REGISTRY, "d-2", [event("b")])
    assert inbox.oldest_waiting(clock.go(minutes=1)) == 120
    _claimed(inbox, clock)
    assert inbox.oldest_waiting(clock.now) == 60
    assert inbox.counts() == {"waiting": 1, "in-work": 1, "done": 0, "set-aside": 0}


def test_the_newest_entries_of_a_state_and_of_a_registry_are_listed(inbox: Inbox, clock: Clock) -> None:
    inbox.take(REGISTRY, "d-1", [event("a"), event("b")])
    inbox.take("hub", "d-1", [event("c")])
    inbox.finish(_claimed(inbox, clock), [])

    def models(**asked: object) -> list[str]:
        return [entry.event.model for entry in inbox.entries(**asked)]  # type: ignore[arg-type]

    assert models(limit=2) == ["c", "b"]
    assert models(state="waiting") == ["c", "b"]
    assert models(registry=REGISTRY) == ["b", "a"]
    assert models(state="done", registry="hub") == []


@pytest.mark.parametrize("delivery", ["x" * 100_000, "nul\0", "half \ud800", "", "ümläut/'; DROP TABLE"], ids=repr)
def test_any_text_may_be_the_id_of_a_delivery(delivery: str, inbox: Inbox) -> None:
    assert inbox.take(REGISTRY, delivery, [event("a")])
    assert not inbox.take(REGISTRY, delivery, [event("a")])
    assert len(inbox.entries()[0].delivery) <= 200


def test_odd_names_and_reasons_are_kept(inbox: Inbox, clock: Clock) -> None:
    odd = event("n\0ul/\u202eümläut'; --")
    inbox.take(REGISTRY, "d-1", [odd])
    mine = _claimed(inbox, clock, "worker\0\ud800")
    assert mine.event == odd
    assert inbox.set_aside(mine, "why\0\ud800\n" + "x" * 10_000)
    assert inbox.entries()[0].reason.startswith("why?\nxxx")


def test_an_entry_that_cannot_be_read_is_set_aside_and_the_next_one_comes(url: str, inbox: Inbox, clock: Clock) -> None:
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


def test_a_change_of_what_events_hold_is_a_new_version_of_the_tables() -> None:
    """Older workers refuse a newer inbox, and need not guess at fields that they do not know."""
    assert sql.SCHEMA == 1
    assert set(Event.model_fields) == {"registry", "model", "version", "change", "value", "source"}
