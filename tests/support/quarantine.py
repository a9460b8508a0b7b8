"""Quarantine: tests that were seen to fail without a known cause run and are reported, and fail nothing."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

import pytest

LIST = Path(__file__).parents[1] / "quarantine.toml"
LONGEST = timedelta(days=14)


@dataclass(frozen=True)
class Quarantined:
    """One entry of the list.

    Attributes:
        id: the test, as pytest names it; without brackets, all cases of it.
        date: the day on which it was seen to fail.
        seen: what was seen.
    """

    id: str
    date: date
    seen: str

    def covers(self, test: str) -> bool:
        """Whether a test is meant."""
        name = test.partition("@")[0]  # xdist adds the group
        return self.id in {name, name.partition("[")[0]}


def read_list(path: Path = LIST) -> list[Quarantined]:
    """The entries of a list.

    Raises:
        TypeError: an entry lacks a key or has another one.
    """
    return [Quarantined(**entry) for entry in tomllib.loads(path.read_text()).get("test", [])]


def mark_quarantined(items: list[pytest.Item], entries: list[Quarantined]) -> None:
    """Have the failures of quarantined tests reported as expected ones."""
    for item in items:
        for entry in entries:
            if entry.covers(item.nodeid):
                item.add_marker(pytest.mark.xfail(reason=f"quarantined on {entry.date}: {entry.seen}", strict=False))


def overdue(entries: list[Quarantined], today: date) -> list[str]:
    """A line for each entry that stands there for too long."""
    return [
        f"{entry.id} is quarantined since {entry.date}: {entry.seen}; mend it, or delete it"
        for entry in entries
        if today - entry.date > LONGEST
    ]
