"""What is still to be told is as durable as the inbox: nothing is lost, and one at a time has it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from plansmith.triggers.inbox import sql
from plansmith.triggers.inbox.inbox import Inbox
from plansmith.triggers.inbox.location import read_url
from plansmith.triggers.worker_loop import LEASE_SECONDS

from ...support.triggers.inboxes import Clock, event, killed, lines_of, made, opened, start_module
from ...support.triggers.known_runs import champion
from ...support.triggers.mlflow_server import Mlflow, serving
from ...support.triggers.write_backs import PUBLISHED, KnownEndings, finish, run_of, teller

ONE = run_of("one")


def claimed(inbox: Inbox, clock: Clock, lease: float = LEASE_SECONDS) -> int | None:
    found = inbox.write_backs.claim("t", clock.now, lease)
    return None if found is None else found.entry


def test_tellings_are_handed_out_one_at_a_time_for_each_model_and_come_back_after_their_lease(
    inbox: Inbox, clock: Clock
) -> None:
    first, second, other = (finish(inbox, clock.go(seconds=1), ONE, event=event(model)) for model in "aab")
    assert [claimed(inbox, clock) for _ in range(3)] == [first, other, None]
    clock.go(seconds=LEASE_SECONDS)
    again = inbox.write_backs.claim("t", clock.now, LEASE_SECONDS)
    assert again is not None
    assert again.entry == first
    assert inbox.write_backs.renew(again, clock.go(seconds=1), LEASE_SECONDS)
    assert inbox.write_backs.finish(again, "published")
    assert not inbox.write_backs.finish(again, "published"), "it has it no more"
    assert [claimed(inbox, clock), claimed(inbox, clock)] == [second, other]
    assert {number: one.state for number, one in inbox.write_backs.of(first, second, other, 77).items()} == {
        first: "written",
        second: "in-work",
        other: "in-work",
    }


def test_whoever_lost_a_telling_changes_nothing(inbox: Inbox, clock: Clock) -> None:
    number = finish(inbox, clock.now, ONE)
    lost = inbox.write_backs.claim("slow", clock.now, LEASE_SECONDS)
    assert lost is not None
    clock.go(seconds=LEASE_SECONDS)
    assert claimed(inbox, clock) == number
    before = inbox.write_backs.of(number)
    now = clock.now + timedelta(hours=1)
    assert not inbox.write_backs.renew(lost, now, LEASE_SECONDS)
    assert not inbox.write_backs.finish(lost, "published")
    assert not inbox.write_backs.postpone(lost, "x", now, failed=True)
    assert not inbox.write_backs.set_aside(lost, "x")
    assert not inbox.write_backs.unwanted(lost)
    assert inbox.write_backs.of(number) == before


def test_waiting_for_runs_is_no_failure_and_what_failed_is_counted(inbox: Inbox, clock: Clock) -> None:
    number = finish(inbox, clock.now, ONE)
    for failed in (False, True, False, True):
        one = inbox.write_backs.claim("t", clock.go(seconds=1), LEASE_SECONDS)
        assert one is not None
        assert inbox.write_backs.postpone(one, "why\0", clock.go(seconds=1), failed=failed)
    told = inbox.write_backs.of(number)[number]
    assert (told.attempts, told.reason, told.next_try_at) == (2, "why", clock.now)
    assert told.worker == told.lease == ""


def test_only_what_is_done_and_became_runs_is_told_again(inbox: Inbox, clock: Clock) -> None:
    done, unwanted = finish(inbox, clock.now, ONE, tell=False), finish(inbox, clock.now)
    assert inbox.take("mlflow", "d-9", [event("new")])
    assert inbox.write_backs.again(done, unwanted, 3, 77) == (done,)
    held = inbox.write_backs.claim("t", clock.now, LEASE_SECONDS)
    assert held is not None
    assert inbox.write_backs.again(done) == (done,)
    assert not inbox.write_backs.finish(held, "published"), "it was asked for once more meanwhile"
    assert claimed(inbox, clock) == done


def test_entries_stay_until_they_are_told_and_take_their_tellings_with_them(inbox: Inbox, clock: Clock) -> None:
    told, waits, aside, quiet = (finish(inbox, clock.now, ONE, event=made(name), tell=name != "d") for name in "abcd")
    for ends in (
        lambda one: inbox.write_backs.finish(one, "failed"),
        None,
        lambda one: inbox.write_backs.set_aside(one, "x"),
    ):
        one = inbox.write_backs.claim("t", clock.now, LEASE_SECONDS)
        assert one is not None
        if ends is not None:
            assert ends(one)
    assert inbox.prune(clock.go(days=1)) == 2
    assert {entry.id for entry in inbox.entries()} == {waits, aside}
    assert set(inbox.write_backs.of(told, waits, aside, quiet)) == {waits, aside}
    assert inbox.drop(aside) == (aside,)
    assert inbox.write_backs.of(aside) == {}


@pytest.mark.slow
@pytest.mark.parametrize("where", ["written", "begun"])
def test_a_teller_that_is_killed_around_its_writing_is_followed_by_one_that_says_the_same(
    where: str, url: str, clock: Clock
) -> None:
    with opened(url, clock) as inbox, serving(Mlflow()) as mlflow:
        mlflow.add("ranker", 3)
        number = finish(inbox, clock.now, ONE, event=champion())
        victim = start_module("write_back_process", url, mlflow.url, where)
        assert lines_of(victim, 1) == [where]
        assert killed(victim) == []
        assert inbox.write_backs.of(number)[number].state == "in-work"
        before = mlflow.tags("ranker", 3)
        assert ("plansmith.verdict" in before) is (where == "written")

        endings = KnownEndings()
        endings.end(ONE, PUBLISHED)
        after = teller(inbox, endings, mlflow, clock)
        assert not after.step(), "its lease runs on"
        clock.go(seconds=LEASE_SECONDS)
        assert after.step()
        assert inbox.write_backs.of(number)[number].state == "written"
        assert len(mlflow.changes) == 7, "no tag was set to something else, or twice"
        assert before in ({}, mlflow.tags("ranker", 3))


def test_an_inbox_of_an_older_plansmith_is_brought_up_to_date_with_all_that_it_holds(url: str, clock: Clock) -> None:
    with opened(url, clock) as inbox:
        number = finish(inbox, clock.now, ONE)
    _make_old(url)
    with opened(url, clock) as one, opened(url, clock) as other:
        assert [entry.id for entry in one.entries()] == [number]
        assert one.write_backs.of(number) == {}
        assert one.write_backs.again(number) == (number,)
        assert claimed(other, clock) == number
        assert one.prune(clock.go(days=1)) == 0


def _make_old(url: str) -> None:
    """Take from an inbox what was not there in its first version."""
    import sqlalchemy as sa

    engine = sa.create_engine(read_url(url, Path()))
    with engine.begin() as connection:
        _execute(
            connection,
            "DROP TABLE plansmith_write_backs",
            "DROP INDEX plansmith_entries_by_content",
            "DROP INDEX plansmith_entries_by_topic",
            "ALTER TABLE plansmith_entries DROP COLUMN topic",
            "ALTER TABLE plansmith_entries DROP COLUMN started",
            "ALTER TABLE plansmith_deliveries DROP COLUMN expires",
            "UPDATE plansmith_inbox SET version = 1",
        )
    engine.dispose()
    assert sql.SCHEMA == 4, "what a newer version adds is to be taken away here, too"


def _execute(connection: Any, *texts: str) -> None:
    for text in texts:
        connection.exec_driver_sql(text)
