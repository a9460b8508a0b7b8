"""Entries of the inbox as lines and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from plansmith.cli.text import count, printable, table

if TYPE_CHECKING:
    from plansmith.triggers.inbox.entry import InboxEntry, WriteBack, WriteBackState


def document_of(entry: InboxEntry, told: WriteBack | None) -> dict[str, Any]:
    """An entry as JSON-ready fields; `told`: how far the registry was told of its runs, null where it is not."""
    said = None if told is None else told.model_dump(mode="json", exclude={"entry", "lease"})
    return {**entry.model_dump(mode="json", exclude={"lease"}), "write_back": said}


def write_back_counts(counts: Mapping[WriteBackState, int]) -> str:
    """How many registries are still to be told, or could not be; nothing where all were."""
    parts = {"to be told": counts["waiting"] + counts["in-work"], "could not be told": counts["set-aside"]}
    said = ", ".join(f"{number} {words}" for words, number in parts.items() if number)
    return f"; registries: {said}" if said else ""


def listed(entries: tuple[InboxEntry, ...], told: Mapping[int, WriteBack]) -> list[str]:
    """A line of the table for each entry, and below it why it stands where it does and what it became."""
    from plansmith.triggers.entry_text import describe_write_back, shown_state

    if not entries:
        return []
    head, *rows = table([("ID", "RECEIVED (UTC)", "REGISTRY", "STATE", "WHAT"), *map(_cells, entries)])
    lines = [head]
    for entry, row in zip(entries, rows, strict=True):
        lines.append(row)
        if entry.reason:
            lines.append(_why(entry))
        if shown_state(entry) == "unwanted":
            lines.append("    no rule wants it")
        lines += [f"    run {run.id}  {printable(run.address)}".rstrip() for run in entry.known_runs]
        if entry.id in told:
            lines.append(f"    {printable(describe_write_back(told[entry.id]))}")
    return lines


def _cells(entry: InboxEntry) -> tuple[str, ...]:
    from plansmith.formatting import minute
    from plansmith.triggers.entry_text import shown_state

    received, state = minute(entry.received_at.isoformat()), shown_state(entry).replace("-", " ")
    return str(entry.id), received, entry.registry, state, printable(entry.event.words)


def _why(entry: InboxEntry) -> str:
    from plansmith.formatting import minute

    if entry.state == "done":
        return f"    {printable(entry.reason)}"
    next_try = f", again at {minute(entry.next_try_at.isoformat())}" if entry.state == "waiting" else ""
    return f"    {printable(entry.reason)} ({count(entry.attempts, 'attempt')}{next_try})"
