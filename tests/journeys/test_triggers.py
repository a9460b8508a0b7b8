"""What model registries tell is kept in an inbox, whoever is killed."""

from __future__ import annotations

from collections import Counter

from ..support.cli.command import CommandLine
from ..support.triggers.inboxes import REGISTRY, Clock, event, killed, lines_of, opened, start

HELD_SECONDS = 600  # the lease that working_process.py takes


def test_inbox_outlives_receiver_and_worker(terminal: CommandLine) -> None:
    """What was acknowledged is there once after its receiver was killed; what a killed worker had comes back."""
    url, clock = f"sqlite:///{terminal.folder}/inbox.db", Clock()
    receiver = start("taking_process.py", url, "d", "4")
    acknowledged = lines_of(receiver, 20)
    acknowledged += killed(receiver)
    with opened(url) as inbox:
        deliveries = Counter(entry.delivery for entry in inbox.entries(limit=100_000))
        assert set(deliveries.values()) == {2}, "both events of each, or none"
        assert set(acknowledged) <= set(deliveries)
        assert not any(inbox.take(REGISTRY, delivery, [event("again")]) for delivery in acknowledged)

    with opened(url, clock) as inbox:
        assert inbox.take(REGISTRY, "held", [event("ranker")])
    worker = start("working_process.py", url, "victim", "one")
    (entry_id,) = lines_of(worker, 1)
    assert killed(worker) == []
    listing = terminal.document("triggers", "inbox", "list", "--database", url, "--state", "in-work")
    waiting = 2 * len(deliveries)
    assert listing["counts"] == {"waiting": waiting, "in-work": 1, "done": 0, "set-aside": 0}
    assert [entry["id"] for entry in listing["entries"]] == [int(entry_id)]
    with opened(url, clock) as inbox:
        again = inbox.claim("another", clock.go(seconds=HELD_SECONDS), HELD_SECONDS)
        assert again is not None
        assert (again.id, again.attempts) == (int(entry_id), 2)
        assert inbox.finish(again, ())
    text = terminal.text("triggers", "inbox", "list", "--database", url)
    assert text.splitlines()[0] == f"{url}: {waiting} waiting, 0 in work, 1 done, 0 set aside"
