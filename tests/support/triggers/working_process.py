"""Works on an inbox and prints what it has claimed: URL, name, `all` to finish everything or `one` to stop with one."""

from __future__ import annotations

import signal
import sys
from datetime import UTC, datetime

from plansmith.triggers.inbox.inbox import Inbox, open_inbox

_LEASE_SECONDS = 600
_LONGEST_SECONDS = 120
_NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def _work_off(inbox: Inbox, worker: str) -> None:
    """Until all is done; an entry whose lane another has is waited for."""
    while inbox.counts()["waiting"]:
        entry = inbox.claim(worker, datetime.now(UTC), _LEASE_SECONDS)
        if entry is not None:
            print(entry.id, flush=True)
            assert inbox.finish(entry, ())


def _hold_one(inbox: Inbox, worker: str) -> None:
    """Until killed."""
    entry = inbox.claim(worker, _NOW, _LEASE_SECONDS)
    assert entry is not None
    print(entry.id, flush=True)
    sys.stdin.read()


def main(url: str, worker: str, how: str) -> None:
    """Work until all is done, or with one entry until killed."""
    signal.alarm(_LONGEST_SECONDS)  # whatever becomes of the test that started it
    inbox = open_inbox(url)
    (_work_off if how == "all" else _hold_one)(inbox, worker)


if __name__ == "__main__":
    main(*sys.argv[1:])
