"""Search budget, divided into screening, successive halving and confirmation."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Self

from pydantic import model_validator

from plansmith.errors import UsageError
from plansmith.formatting import format_seconds
from plansmith.records.model import Record

DEFAULT_SHARE = 0.1
"""Of the runs of a full grid: what screening and halving take by default; the confirmation comes on top."""

MIN_SEARCH_RUNS = 6
_ENOUGH_SEARCH_RUNS = 17
"""Up to here a search of a small space takes more than its share."""
_HALVING_SHARE = 0.2
_ROUNDS, _FEW_ROUNDS = 5, 4
_MANY_RUNS = 30
MIN_RUNS = MIN_SEARCH_RUNS + 2 * _FEW_ROUNDS

START_SECONDS = 8.0
"""An estimate of what a run takes besides its load: starting a server and clients, warming up."""

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600}


class Budget(Record):
    """Search budget: a number of runs, or a time.

    Attributes:
        runs: of any length, with those of the confirmation.
        seconds: of wall time, without compiling.
    """

    runs: int | None = None
    seconds: float | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.runs is None) == (self.seconds is None):
            raise ValueError("give runs or seconds")
        return self


class Schedule(Record):
    """Schedule of a search: its runs by phase.

    Attributes:
        screening: short runs.
        rungs: of the halving: how many of the best are run again, longer on each rung.
        rounds: of the confirmation, each with a run of the current and one of the best configuration.
        seconds: of the longest runs, which are those of the last rung and of the confirmation.
    """

    screening: int
    rungs: tuple[int, ...]
    rounds: int
    seconds: float

    @property
    def runs(self) -> int:
        """The number of all runs."""
        return self.search_runs + 2 * self.rounds

    @property
    def search_runs(self) -> int:
        """The number of runs in screening and successive halving."""
        return self.screening + sum(self.rungs)

    @property
    def duration_seconds(self) -> float:
        """The estimated duration of all runs."""
        halving = sum(count * self.rung_seconds(rung) for rung, count in enumerate(self.rungs, 1))
        load = self.screening * self.rung_seconds(0) + halving + 2 * self.rounds * self.seconds
        return load + self.runs * START_SECONDS

    @property
    def description(self) -> str:
        """A description of the runs."""
        counts = {self.rung_seconds(rung): count for rung, count in enumerate((self.screening, *self.rungs))}
        return describe_runs(counts, {self.seconds: self.rounds})

    def rung_seconds(self, rung: int) -> float:
        """Return the load of a run in seconds.

        Rung 0 is the screening, and each rung doubles that of the one before.
        """
        return round(self.seconds / (1 << (len(self.rungs) - rung)), 3)

    def limited_to(self, configurations: int) -> Schedule:
        """Return the schedule for a search space that is so small that the screening covers all of it."""
        screening = min(self.screening, configurations)
        rungs = tuple(min(count, screening) for count in self.rungs)
        return self.model_copy(update={"screening": screening, "rungs": rungs})


def describe_runs(search: Mapping[float, int], rounds: Mapping[float, int]) -> str:
    """Describe runs: "8 of 3 s, 3 of 6 s and 1 of 12 s, 5 rounds of twice 12 s".

    Args:
        search: number of runs by seconds.
        rounds: number of rounds of the confirmation, by the seconds of their runs.
    """
    first, *others = [f"{count} of {seconds:g} s" for seconds, count in search.items()]
    confirmation = [
        f"{count} round{'' if count == 1 else 's'} of twice {seconds:g} s" for seconds, count in rounds.items()
    ]
    return ", ".join(filter(None, (first, " and ".join(others), *(confirmation or ["no confirmation"]))))


def count_by_seconds(seconds: list[float]) -> Mapping[float, int]:
    """Return the number of runs of each length."""
    return Counter(seconds)


def schedule_runs(runs: int, *, seconds: float) -> Schedule:
    """Allocate a number of runs, at least `MIN_RUNS`, given the seconds of load of the longest ones."""
    rounds = _ROUNDS if runs >= _MANY_RUNS else _FEW_ROUNDS
    search = runs - 2 * rounds
    halving = max(1, math.floor(search * _HALVING_SHARE))
    last = max(2, halving // 4)
    rungs = (halving - last, last) if halving >= 2 * last else (halving,)
    return Schedule(screening=search - halving, rungs=rungs, rounds=rounds, seconds=seconds)


def schedule_within(limit_seconds: float, *, max_runs: int, seconds: float) -> Schedule:
    """Allocate as many runs as fit into a time limit, at most `max_runs`."""
    schedule = schedule_runs(MIN_RUNS, seconds=seconds)
    while schedule.runs < max_runs:
        larger = schedule_runs(schedule.runs + 1, seconds=seconds)
        if larger.duration_seconds > limit_seconds:
            break
        schedule = larger
    return schedule


def default_schedule(size: int, *, seconds: float) -> Schedule:
    """Return the schedule without a budget: `DEFAULT_SHARE` of the full grid, and the confirmation.

    Args:
        size: of the space.
        seconds: of the longest runs.
    """
    share = math.floor(size * DEFAULT_SHARE)
    search = max(share, min(_ENOUGH_SEARCH_RUNS, size), MIN_SEARCH_RUNS)
    rounds = _ROUNDS if search + 2 * _ROUNDS >= _MANY_RUNS else _FEW_ROUNDS
    return schedule_runs(search + 2 * rounds, seconds=seconds)


def parse_budget(text: str, *, seconds: float) -> Budget:
    """Parse a budget: a number of runs such as "40", or a time such as "400s", "20m" or "2h".

    Args:
        text: as it was typed.
        seconds: of the longest runs.

    Raises:
        UsageError: it is neither, or too little for any search.
    """
    match = re.fullmatch(r"\s*([0-9]{0,9}\.?[0-9]{1,9})\s*(s|m|min|h)?\s*", text)
    if match is None or (not match[2] and "." in match[1]):
        raise UsageError(f"--budget {text!r} is neither runs nor a time", remedy="write 40 for runs, or 20m for a time")
    if match[2]:
        limit = float(match[1]) * _UNITS[match[2]]
        least = schedule_runs(MIN_RUNS, seconds=seconds).duration_seconds
        if limit < least:
            raise UsageError(
                f"--budget {text}: a search takes at least {MIN_RUNS} runs, about {format_seconds(least)}",
                remedy=f"give {math.ceil(least / 60)}m or more, or shorter runs (--seconds)",
            )
        return Budget(seconds=limit)
    if int(match[1]) < MIN_RUNS:
        raise UsageError(
            f"--budget {text}: a search takes at least {MIN_RUNS} runs, with those of the confirmation",
            remedy=f"give {MIN_RUNS} or more",
        )
    return Budget(runs=int(match[1]))
