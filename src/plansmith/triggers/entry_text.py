"""How far an entry of the inbox has come, and its registry was told, in words for a person."""

from __future__ import annotations

from plansmith.formatting import minute
from plansmith.triggers.inbox.entry import InboxEntry, WriteBack


def shown_state(entry: InboxEntry) -> str:
    """Where an entry stands; one that is done says no more than that its runs were started, or why there are none."""
    if entry.state != "done":
        return entry.state
    if entry.runs:
        return "started"
    return "outdated" if entry.reason else "unwanted"


def describe_write_back(told: WriteBack) -> str:
    """How far a registry was told what came of a version, in a line; what others said in it stays as it is."""
    if told.state == "written":
        at = f" ({minute(told.settled_at.isoformat())})" if told.settled_at else ""
        return f"the registry was told: {told.verdict or 'what a younger event says'}{at}"
    if told.state == "in-work":
        return "the registry is being told"
    attempts = f"{told.attempts} {'attempt' if told.attempts == 1 else 'attempts'}"
    if told.state == "set-aside":
        return f"the registry was not told: {told.reason} ({attempts})"
    said = f": {told.reason}" if told.reason else ""
    again = f" ({attempts}, again at {minute(told.next_try_at.isoformat())})" if told.attempts else ""
    return f"the registry is not told yet{said}{again}"
