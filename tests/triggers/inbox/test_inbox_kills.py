"""Processes that are killed lose nothing that they acknowledged."""

from __future__ import annotations

from collections import Counter

import pytest

from ...support.triggers.inboxes import REGISTRY, Clock, event, finished, killed, lines_of, opened, start

_WORKERS = 4


@pytest.mark.parametrize(("acknowledged", "threads"), [(1, 1), (7, 1), (40, 4)])
def test_killed_receiver_keeps_acknowledged_delivery(acknowledged: int, threads: int, url: str) -> None:
    """Every acknowledged delivery is there once after its receiver was killed."""
    receiver = start("taking_process.py", url, "d", str(threads))
    lines = lines_of(receiver, acknowledged)
    lines += killed(receiver)
    with opened(url) as inbox:
        counts = Counter(entry.delivery for entry in inbox.entries(limit=100_000))
        assert set(counts.values()) == {2}, "both events of each, or none"
        assert set(lines) <= set(counts)
        assert len(counts) <= len(lines) + threads, "each thread may have been killed before it could say so"
        assert not any(inbox.take(REGISTRY, delivery, [event("again")]) for delivery in lines)


@pytest.mark.slow
def test_two_killed_receivers_leave_inbox(url: str) -> None:
    """Two receivers that are killed one after the other leave an inbox for the third."""
    lines = []
    for name in ("a", "b", "c"):
        receiver = start("taking_process.py", url, name, "2")
        lines += lines_of(receiver, 5)
        lines += killed(receiver)
    with opened(url) as inbox:
        counts = Counter(entry.delivery for entry in inbox.entries(limit=100_000))
    assert set(lines) <= set(counts)
    assert set(counts.values()) == {2}


@pytest.mark.slow
def test_simultaneous_claims_stay_ordered(url: str) -> None:
    """Processes that claim at once get every entry once, and each model in order."""
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
def test_simultaneous_openers_make_one_inbox(url: str) -> None:
    """Processes that open a new inbox at once make one."""
    receivers = [start("taking_process.py", url, name, "1") for name in "abc"]
    lines = [line for receiver in receivers for line in lines_of(receiver, 3)]
    for receiver in receivers:
        lines += killed(receiver)
    with opened(url) as inbox:
        assert set(lines) <= {entry.delivery for entry in inbox.entries(limit=100_000)}
