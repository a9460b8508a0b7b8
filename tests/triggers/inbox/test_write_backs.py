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

from ...support.triggers.inboxes import Clock, created_event, event, killed, lines_of, opened, start_module
from ...support.triggers.known_runs import champion
from ...support.triggers.mlflow_server import Mlflow, serving
from ...support.triggers.write_backs import PUBLISHED, KnownEndings, finish, run_of, teller

ONE = run_of("one")


def claimed(inbox: Inbox, clock: Clock, lease: float = LEASE_SECONDS) -> int | None:
    write_back = inbox.write_backs.claim("t", clock.now, lease)
    return None if write_back is None else write_back.entry


def test_tellings_handed_out_one_per_model(inbox: Inbox, clock: Clock) -> None:
    """Tellings are handed out one at a time for each model, and come back after their lease."""
    first, second, third = (finish(inbox, clock.go(seconds=1), ONE, event=event(model)) for model in "aab")
    assert [claimed(inbox, clock) for _ in range(3)] == [first, third, None]
    clock.go(seconds=LEASE_SECONDS)
    again = inbox.write_backs.claim("t", clock.now, LEASE_SECONDS)
    assert again is not None
    assert again.entry == first
    assert inbox.write_backs.renew(again, clock.go(seconds=1), LEASE_SECONDS)
    assert inbox.write_backs.finish(again, "published")
    assert not inbox.write_backs.finish(again, "published"), "it has it no more"
    assert [claimed(inbox, clock), claimed(inbox, clock)] == [second, third]
    assert {
        number: write_back.state for number, write_back in inbox.write_backs.of(first, second, third, 77).items()
    } == {
        first: "written",
        second: "in-work",
        third: "in-work",
    }


def test_lost_telling_changes_nothing(inbox: Inbox, clock: Clock) -> None:
    """Whoever lost a telling changes nothing."""
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


def test_waiting_for_runs_no_failure(inbox: Inbox, clock: Clock) -> None:
    """Waiting for runs is no failure, and what failed is counted."""
    number = finish(inbox, clock.now, ONE)
    for failed in (False, True, False, True):
        write_back = inbox.write_backs.claim("t", clock.go(seconds=1), LEASE_SECONDS)
        assert write_back is not None
        assert inbox.write_backs.postpone(write_back, "why\0", clock.go(seconds=1), failed=failed)
    record = inbox.write_backs.of(number)[number]
    assert (record.attempts, record.reason, record.next_try_at) == (2, "why", clock.now)
    assert record.worker == record.lease == ""


def test_only_finished_runs_told_again(inbox: Inbox, clock: Clock) -> None:
    """Only an entry that is done and became runs is told again."""
    done, unwanted = finish(inbox, clock.now, ONE, tell=False), finish(inbox, clock.now)
    assert inbox.take("mlflow", "d-9", [event("new")])
    assert inbox.write_backs.again(done, unwanted, 3, 77) == (done,)
    write_back = inbox.write_backs.claim("t", clock.now, LEASE_SECONDS)
    assert write_back is not None
    assert inbox.write_backs.again(done) == (done,)
    assert not inbox.write_backs.finish(write_back, "published"), "it was asked for once more meanwhile"
    assert claimed(inbox, clock) == done


def test_entries_stay_until_told(inbox: Inbox, clock: Clock) -> None:
    """Entries stay until they are told and take their tellings with them."""
    reported, waits, aside, quiet = (
        finish(inbox, clock.now, ONE, event=created_event(name), tell=name != "d") for name in "abcd"
    )
    for ends in (
        lambda write_back: inbox.write_backs.finish(write_back, "failed"),
        None,
        lambda write_back: inbox.write_backs.set_aside(write_back, "x"),
    ):
        write_back = inbox.write_backs.claim("t", clock.now, LEASE_SECONDS)
        assert write_back is not None
        if ends is not None:
            assert ends(write_back)
    assert inbox.prune(clock.go(days=1)) == 2
    assert {entry.id for entry in inbox.entries()} == {waits, aside}
    assert set(inbox.write_backs.of(reported, waits, aside, quiet)) == {waits, aside}
    assert inbox.drop(aside) == (aside,)
    assert inbox.write_backs.of(aside) == {}


@pytest.mark.slow
@pytest.mark.parametrize("where", ["written", "begun"])
def test_killed_teller_repeated_identically(where: str, url: str, clock: Clock) -> None:
    """A teller that is killed around its writing is followed by one that says the same."""
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


def test_old_inbox_upgraded_with_contents(url: str, clock: Clock) -> None:
    """An inbox of an older plansmith is brought up to date with all that it holds."""
    with opened(url, clock) as inbox:
        number = finish(inbox, clock.now, ONE)
    _make_old(url)
    with opened(url, clock) as first, opened(url, clock) as second:
        assert [entry.id for entry in first.entries()] == [number]
        assert first.write_backs.of(number) == {}
        assert first.write_backs.again(number) == (number,)
        assert claimed(second, clock) == number
        assert first.prune(clock.go(days=1)) == 0


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
