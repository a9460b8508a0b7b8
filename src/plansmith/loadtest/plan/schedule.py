"""When each stage begins and ends, and when its open-loop requests are due."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from plansmith.errors import UsageError, first_line
from plansmith.loadtest.plan.stages import DEFAULT_STAGE_SECONDS, MAX_SECONDS, LoadPlan, Stage

_MAX_SHOWN = 40
_TRACE_FORM = "write arrival times in seconds, one per line"


@dataclass(frozen=True)
class ScheduledStage:
    """A stage with its time.

    Attributes:
        stage: the load.
        at: start, in seconds after the first stage began.
        seconds: duration.
        trace: arrival times of a trace, in seconds after the stage began.
    """

    stage: Stage
    at: float
    seconds: float
    trace: tuple[float, ...] = ()

    @property
    def end(self) -> float:
        """When it is over."""
        return self.at + self.seconds


def schedule_stages(plan: LoadPlan) -> tuple[ScheduledStage, ...]:
    """The stages with their times.

    Raises:
        UsageError: stages overlap, the users of one do not start within its time, or a trace cannot be read.
    """
    scheduled: list[ScheduledStage] = []
    users = 0
    for number, stage in enumerate(plan.stages, 1):
        at = stage.at_seconds if stage.at_seconds is not None else (scheduled[-1].end if scheduled else 0.0)
        current = schedule_stage(stage, at)
        change = abs((stage.users or 0) - users)
        if stage.spawn_rate is not None and (ramp_seconds := change / stage.spawn_rate) >= current.seconds:
            raise UsageError(
                f"stage {number} ({stage.label}) takes {current.seconds:g} s, and its users take {ramp_seconds:g} s to"
                " start: nothing would be measured",
                remedy="give it more seconds, or a higher spawn_rate",
            )
        scheduled.append(current)
        users = stage.users or 0
    for number, (before, after) in enumerate(pairwise(scheduled), 1):
        if after.at < before.end:
            raise UsageError(
                f"stages overlap: stage {number + 1} ({after.stage.label}) begins at {after.at:g} s, while stage"
                f" {number} ({before.stage.label}) runs until {before.end:g} s",
                remedy="give it a later at_seconds, or leave that out: it begins after the previous stage",
            )
    return tuple(scheduled)


def schedule_stage(stage: Stage, at: float) -> ScheduledStage:
    """A stage that begins at a time.

    Raises:
        UsageError: its trace cannot be read.
    """
    trace = tuple(read_trace(Path(stage.trace))) if stage.trace else ()
    # A trace without a duration is sent whole, including what is due at its very end.
    default = math.floor(trace[-1]) + 1.0 if trace else DEFAULT_STAGE_SECONDS
    return ScheduledStage(stage, at, stage.seconds or default, trace)


def arrival_times(kind: str, rate: float, trace: list[float], seed: str) -> Iterator[float]:
    """Arrival times in seconds after the stage began; without end, but for a trace.

    Args:
        kind: "constant", "poisson" or "trace".
        rate: arrivals per second; of a Poisson process on average.
        trace: the times of a trace.
        seed: determines those of a Poisson process.
    """
    if kind == "trace":
        return iter(trace)
    return (number / rate for number in itertools.count()) if kind == "constant" else _poisson(rate, seed)


def share_of_client(arrivals: Iterator[float], client: int, clients: int, seconds: float) -> Iterator[float]:
    """Every n-th arrival: what one of several clients sends.

    Args:
        arrivals: all of them.
        client: its number, from 0.
        clients: how many there are.
        seconds: duration of the stage; later arrivals are left out.
    """
    return itertools.takewhile(lambda at: at < seconds, itertools.islice(arrivals, client, None, clients))


def read_trace(path: Path) -> list[float]:
    """The arrival times in a file, one per line, in seconds after the first of them.

    They may be seconds of any clock; empty lines and those that begin with # are skipped.

    Raises:
        UsageError: the file cannot be read, is a device, has no times, or times too far apart.
    """
    if path.is_char_device() or path.is_block_device() or path.is_fifo():
        raise UsageError(
            f"the trace {path} is a {'pipe' if path.is_fifo() else 'device'} and no file", remedy=_TRACE_FORM
        )
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the trace {path} cannot be read: {first_line(error)}", remedy="correct its name") from error
    times = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text and not text.startswith("#"):
            times.append(_read_seconds(text, f"{path}, line {number}"))
    if not times:
        raise UsageError(f"the trace {path} holds no arrival time", remedy=_TRACE_FORM)
    first = min(times)
    if max(times) - first >= MAX_SECONDS:
        raise UsageError(
            f"the times in the trace {path} are more than {MAX_SECONDS / 86400:g} days apart", remedy=_TRACE_FORM
        )
    return sorted(at - first for at in times)


def _poisson(rate: float, seed: str) -> Iterator[float]:
    generator = random.Random(seed)  # noqa: S311 - spreads load, keeps no secret
    at = 0.0
    while True:
        at += generator.expovariate(rate)
        yield at


def _read_seconds(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{where}: {text[:_MAX_SHOWN]!r} is no number of seconds", remedy=_TRACE_FORM)
    return value
