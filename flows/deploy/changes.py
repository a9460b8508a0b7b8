"""What came of putting a service onto Prefect's server."""

from __future__ import annotations

from typing import Literal

from plansmith.records.model import Record


class Change(Record):
    """What came of one thing on Prefect's server; `words` name what differed."""

    what: Literal["work pool", "deployment", "automation"]
    name: str
    outcome: Literal["made", "changed", "left", "removed"]
    words: tuple[str, ...] = ()


class Deployed(Record):
    """What a deployment of a service came to.

    `unattended`: the pools whose runs nobody takes up now. `crashed`: the names of runs that counted as running, and
    had not been heard of for too long.
    """

    changes: tuple[Change, ...]
    unattended: tuple[str, ...] = ()
    crashed: tuple[str, ...] = ()
