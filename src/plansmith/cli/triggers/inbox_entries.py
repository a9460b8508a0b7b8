"""The inbox and the entries that are meant, and why something cannot be done to one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.errors import UsageError

if TYPE_CHECKING:
    from plansmith.triggers.inbox.entry import State
    from plansmith.triggers.inbox.inbox import Inbox


@contextmanager
def opened(service: Path, database: str | None) -> Iterator[Inbox]:
    """The inbox that is meant, for the length of a block; it is not made where there is none."""
    from plansmith.triggers.inbox.inbox import open_inbox
    from plansmith.triggers.inbox.location import database_of

    if database is None:
        from plansmith.triggers.configuration import read_triggered

        instead = "pass --database with the URL of an inbox"
        database = database_of(read_triggered(service, instead=instead), instead=instead)
    inbox = open_inbox(database, make=False)
    try:
        yield inbox
    finally:
        inbox.close()


def write_back_obstacle(inbox: Inbox, service: Path, database: str | None) -> Callable[[int], str]:
    """Says why nothing can be told of an entry; of an inbox by itself nobody knows which registries are told."""
    from plansmith.triggers.configuration import read_triggered

    triggers = None if database else read_triggered(service).triggers

    def why(number: int) -> str:
        entry = inbox.entry(number)
        if entry is not None and not entry.runs:
            return "became no run"
        if entry is None or triggers is None:
            return ""
        if entry.registry not in triggers.registries:
            return f"is of the registry {entry.registry}, which {service} lacks"
        is_told = getattr(triggers.registries[entry.registry], "write_back", False)
        return "" if is_told else f"is of the registry {entry.registry}, which is not told (no write_back: true)"

    return why


def present(
    inbox: Inbox, ids: tuple[int, ...], *, refused: tuple[State, ...], why_not: Callable[[int], str] = lambda _: ""
) -> tuple[int, ...]:
    """These ids, each once, oldest first.

    Raises:
        UsageError: there is no such entry, or one is in a state in which that is not done to it, or there is another
            reason why not; nothing was changed.
    """
    states = inbox.states(*ids)
    problems = [f"there is no entry {number}" for number in dict.fromkeys(ids) if number not in states]
    problems += [f"entry {number} is {state.replace('-', ' ')}" for number, state in states.items() if state in refused]
    others = [number for number, state in states.items() if state not in refused]
    problems += [f"entry {number} {words}" for number in others if (words := why_not(number))]
    if problems:
        raise UsageError("; ".join(problems), remedy="plansmith triggers inbox list shows what there is")
    return tuple(sorted(states))
