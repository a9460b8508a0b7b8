"""Every delivery is kept once, and every entry is one worker's at a time, in the order of its model."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from plansmith.errors import EnvironmentFault
from plansmith.triggers.inbox import sql
from plansmith.triggers.inbox.entry import InboxEntry, StartedRun
from plansmith.triggers.inbox.inbox import Inbox
from plansmith.triggers.inbox.rows import Delivery
from plansmith.triggers.registries.event import Event

from ...support.triggers.inboxes import LEASE, REGISTRY, Clock, event, made, opened


def _claimed(inbox: Inbox, clock: Clock, worker: str = "w") -> InboxEntry:
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


def test_a_person_retries_what_waits_or_is_done_and_not_what_is_in_work(inbox: Inbox, clock: Clock) -> None:
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


def test_a_lease_that_is_renewed_holds_for_longer_and_one_that_others_have_taken_is_not(
    inbox: Inbox, clock: Clock
) -> None:
    inbox.take(REGISTRY, "d-1", [event("a")])
    first = _claimed(inbox, clock)
    assert inbox.renew(first, clock.go(seconds=LEASE - 1), LEASE)
    assert inbox.claim("other", clock.go(seconds=LEASE - 1), LEASE) is None
    second = inbox.claim("other", clock.go(seconds=1), LEASE)
    assert second is not None
    assert not inbox.renew(first, clock.now, LEASE)
    assert inbox.finish(second, [])


def test_what_recurs_is_a_repetition_until_something_else_was_told_of_the_same(inbox: Inbox) -> None:
    first, other, tag = event("a", 3), event("a", 4), event("a", 3).model_copy(update={"value": "challenger"})
    back, away = (Delivery(REGISTRY, f"to-{one.version}", (one,), recurs=True) for one in (first, other))
    told = [back, back, away, back, back, away, away]
    assert [inbox.take_all([one])[0] for one in told] == [True, False, True, True, False, True, False]
    assert [entry.event.version for entry in inbox.entries()[::-1]] == ["3", "4", "3", "4"]
    both = Delivery(REGISTRY, "both", (first, tag), recurs=True)
    assert inbox.take_all([both, both]) == [True, False]
    inbox.take_all([away])
    assert inbox.take_all([both]) == [True]
    assert [entry.event for entry in inbox.entries()[:4]] == [first, other, tag, first]


def test_what_recurs_and_comes_to_several_receivers_at_once_is_kept_once(url: str, inbox: Inbox) -> None:
    back = Delivery(REGISTRY, "to-3", (event("a", 3),), recurs=True)
    inbox.take_all([back])
    inbox.take(REGISTRY, "to-4", [event("a", 4)])
    with opened(url) as other, ThreadPoolExecutor(8) as pool:
        new = list(pool.map(lambda one: one.take_all([back])[0], [inbox, other] * 8))
    assert new.count(True) == 1
    assert len(inbox.entries()) == 3


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
    inbox.take(REGISTRY, "old", [made("a"), made("b"), made("c")])
    inbox.finish(_claimed(inbox, clock), [])
    inbox.set_aside(_claimed(inbox, clock), "poison")
    clock.go(days=2)
    inbox.take(REGISTRY, "young", [made("d")])
    inbox.finish(_claimed(inbox, clock), [])
    assert inbox.count_old(clock.now - timedelta(days=1)) == 1
    assert inbox.prune(clock.now - timedelta(days=1)) == 1
    assert inbox.count_old(clock.now - timedelta(days=1)) == 0
    assert inbox.counts() == {"waiting": 1, "in-work": 0, "done": 1, "set-aside": 1}


def test_a_delivery_stays_known_though_its_entries_are_gone(inbox: Inbox, clock: Clock) -> None:
    inbox.take(REGISTRY, "d-1", [made("a")])
    inbox.finish(_claimed(inbox, clock), [])
    assert inbox.prune(clock.go(days=1000)) == 1
    assert not inbox.take(REGISTRY, "d-1", [made("a")])


def test_a_delivery_that_is_too_old_to_be_taken_is_forgotten_and_none_that_may_come_again(
    inbox: Inbox, clock: Clock
) -> None:
    signed, found = (Delivery(REGISTRY, name, (made(name),), expires=name == "signed") for name in ("signed", "found"))
    inbox.take_all([signed, found])
    clock.go(days=6)
    inbox.prune(clock.now)
    assert inbox.take_all([signed, found]) == [False, False], "a replay could still be within its window"
    clock.go(days=2)
    inbox.prune(clock.now - timedelta(days=30))
    assert inbox.take_all([signed, found]) == [False, False], "a person asked for what is older"
    inbox.prune(clock.now)
    assert inbox.take_all([signed, found]) == [True, False]


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
    assert sql.SCHEMA == 4
    assert set(StartedRun.model_fields) == {"id", "address", "model", "target"}
    assert set(Event.model_fields) == {"registry", "model", "version", "change", "value", "source", "at", "wrong"}


def test_what_has_begun_is_known_while_the_rest_waits_and_is_what_a_person_found_wanting_when_it_is_retried(
    inbox: Inbox, clock: Clock
) -> None:
    one, other, anew = (StartedRun(id=name, model=name[0], target="t") for name in ("a1", "b1", "a2"))
    inbox.take(REGISTRY, "d-1", [event("m")])
    assert inbox.postpone(_claimed(inbox, clock), "b waits", clock.now, started=[one])
    assert (inbox.entries()[0].runs, inbox.entries()[0].started) == ((), (one,))
    assert inbox.postpone(_claimed(inbox, clock), "away", clock.now)
    assert inbox.entries()[0].known_runs == (one,)
    assert inbox.set_aside(_claimed(inbox, clock), "poison", started=[one, other])
    assert (inbox.entries()[0].runs, inbox.entries()[0].started) == ((), (one, other))
    assert inbox.retry(1)
    assert (inbox.entries()[0].runs, inbox.entries()[0].started, inbox.entries()[0].reason) == ((one, other), (), "")
    assert inbox.postpone(_claimed(inbox, clock), "b waits", clock.now, started=[anew])
    assert (inbox.entries()[0].runs, inbox.entries()[0].started) == ((one, other), (anew, other))
    assert inbox.finish(_claimed(inbox, clock), [anew])
    assert (inbox.entries()[0].runs, inbox.entries()[0].started) == ((anew,), ())


def test_the_newest_of_a_topic_is_known_and_stays_when_old_entries_go(inbox: Inbox, clock: Clock) -> None:
    other = event("a", 9).model_copy(update={"value": "challenger"})
    for number, one in enumerate((event("a", 3), event("a", 4), other, event("b", 7))):
        inbox.take(REGISTRY, f"d-{number}", [one])
        assert inbox.finish(_claimed(inbox, clock), [StartedRun(id=f"run-{number}")])
    assert inbox.youngest(event("a", 3)) == (2, event("a", 4).content_key)
    assert inbox.youngest(other) == (3, other.content_key)
    assert inbox.youngest(event("c")) is None
    assert inbox.newest() == 4
    before = clock.go(days=1)
    assert inbox.count_old(before) == inbox.prune(before) == 1
    assert [entry.id for entry in inbox.entries()] == [4, 3, 2]
