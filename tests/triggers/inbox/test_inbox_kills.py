"""Processes that are killed lose nothing that they acknowledged, and what they had in work comes back."""

from __future__ import annotations

from collections import Counter

import pytest

from plansmith.errors import EnvironmentFault

from ...support.prefect import postgres
from ...support.triggers.inboxes import REGISTRY, Clock, event, finished, killed, lines_of, opened, start

_WORKERS = 4
_HELD_SECONDS = 600  # the lease that working_process.py takes


@pytest.mark.parametrize(("acknowledged", "threads"), [(1, 1), (7, 1), (40, 4)])
def test_every_acknowledged_delivery_is_there_once_after_its_receiver_was_killed(
    acknowledged: int, threads: int, url: str
) -> None:
    receiver = start("taking_process.py", url, "d", str(threads))
    told = lines_of(receiver, acknowledged)
    told += killed(receiver)
    with opened(url) as inbox:
        kept = Counter(entry.delivery for entry in inbox.entries(limit=100_000))
        assert set(kept.values()) == {2}, "both events of each, or none"
        assert set(told) <= set(kept)
        assert len(kept) <= len(told) + threads, "each thread may have been killed before it could say so"
        assert not any(inbox.take(REGISTRY, delivery, [event("again")]) for delivery in told)


@pytest.mark.slow
def test_two_receivers_that_are_killed_one_after_the_other_leave_an_inbox_for_the_third(url: str) -> None:
    told = []
    for name in ("a", "b", "c"):
        receiver = start("taking_process.py", url, name, "2")
        told += lines_of(receiver, 5)
        told += killed(receiver)
    with opened(url) as inbox:
        kept = Counter(entry.delivery for entry in inbox.entries(limit=100_000))
    assert set(told) <= set(kept)
    assert set(kept.values()) == {2}


def test_what_a_killed_worker_had_comes_back_when_its_lease_has_run_out(url: str) -> None:
    clock = Clock()
    with opened(url, clock) as inbox:
        inbox.take(REGISTRY, "d-1", [event("a", 1), event("a", 2)])
        worker = start("working_process.py", url, "victim", "one")
        (held,) = lines_of(worker, 1)
        assert killed(worker) == []
        assert inbox.claim("other", clock.go(seconds=_HELD_SECONDS - 1), _HELD_SECONDS) is None
        again = inbox.claim("other", clock.go(seconds=1), _HELD_SECONDS)
        assert again is not None
        assert (again.id, again.event, again.attempts) == (int(held), event("a", 1), 2)


@pytest.mark.slow
def test_processes_that_claim_at_once_get_every_entry_once_and_each_model_in_order(url: str) -> None:
    with opened(url) as inbox:
        for number in range(30):
            inbox.take(REGISTRY, f"d-{number}", [event(f"m{model}", number) for model in range(4)])
        workers = [start("working_process.py", url, f"w{number}", "all") for number in range(_WORKERS)]
        claimed = [int(line) for worker in workers for line in finished(worker)]
        entries = sorted(inbox.entries(limit=1000), key=lambda entry: entry.id)
    assert sorted(claimed) == [entry.id for entry in entries]
    assert {(entry.state, entry.attempts) for entry in entries} == {("done", 1)}
    for model in range(4):
        ended = [entry.settled_at for entry in entries if entry.event.model == f"m{model}"]
        assert ended == sorted(ended, key=lambda moment: moment or Clock().now)


@pytest.mark.slow
def test_processes_that_open_a_new_inbox_at_once_make_one(url: str) -> None:
    receivers = [start("taking_process.py", url, name, "1") for name in "abc"]
    told = [line for receiver in receivers for line in lines_of(receiver, 3)]
    for receiver in receivers:
        told += killed(receiver)
    with opened(url) as inbox:
        assert set(told) <= {entry.delivery for entry in inbox.entries(limit=100_000)}


@pytest.mark.services
def test_an_inbox_whose_database_was_killed_goes_on_when_that_is_back() -> None:
    with postgres.running() as server, opened(server.url.replace("+asyncpg", "")) as inbox:
        assert inbox.take(REGISTRY, "d-1", [event("a")])
        server.kill()
        with pytest.raises(EnvironmentFault, match="does not answer as it should") as away:
            inbox.take(REGISTRY, "d-2", [event("b")])
        assert away.value.transient
        server.start()
        assert not inbox.take(REGISTRY, "d-1", [event("a")])
        assert inbox.take(REGISTRY, "d-2", [event("b")])
        assert inbox.counts()["waiting"] == 2
