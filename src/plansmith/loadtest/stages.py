"""Load test stages: numbers of users or arrival rates, and the conditions that end a test early.

Closed loop: each user sends a request, waits for the answer, and sends the next. Open loop: requests are due at times
that no answer changes, like those of independent clients. Each open-loop latency counts from the time at which the
request was due, so that a request that waits behind a slow answer is not left out: coordinated omission (Tene, How NOT
to Measure Latency, 2013).
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from plansmith.errors import UsageError, first_line
from plansmith.records.fields import NonNegativeCount, Number, Part, PositiveCount
from plansmith.records.model import Record

MAX_SECONDS = 30 * 24 * 3600.0
"""No stage takes longer: more is a mistake, such as milliseconds in a trace."""

MAX_LOAD = 1_000_000
"""Users, or requests per second: more than any client could generate."""

DEFAULT_STAGE_SECONDS = 30.0
WARM_UP_SECONDS = 5.0

Loop = Literal["closed", "open"]
Positive = Annotated[Number, Field(gt=0)]
Seconds = Annotated[Positive, Field(le=MAX_SECONDS)]

_MAX_SHOWN = 40
_TRACE_FORM = "write arrival times in seconds, one per line"


class Stage(Record):
    """Load test stage: constant load or a ramp to it, as users, an arrival rate, or a trace."""

    name: str = Field(default="", description="Name in the results; describes the load when left out.")
    users: Annotated[PositiveCount, Field(le=MAX_LOAD)] | None = Field(
        default=None, description="Closed loop: concurrent users, each of which waits for its answer."
    )
    spawn_rate: Positive | None = Field(
        default=None, description="Users started or stopped per second; all at once when left out."
    )
    rate: Annotated[Positive, Field(le=MAX_LOAD)] | None = Field(
        default=None, description="Open loop: requests per second, independent of the answers."
    )
    arrivals: Literal["constant", "poisson"] = Field(
        default="constant", description="Arrival process of a rate: evenly spaced, or a Poisson process."
    )
    trace: str = Field(
        default="",
        description="Open loop: file of recorded arrival times in seconds, one per line; relative to the plan.",
    )
    seconds: Seconds | None = Field(default=None, description="Duration; the whole trace when left out.")
    at_seconds: Annotated[Number, Field(ge=0, le=MAX_SECONDS)] | None = Field(
        default=None, description="Start, after the start of the first stage; after the previous stage when left out."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        loads = [name for name in ("users", "rate", "trace") if getattr(self, name)]
        if len(loads) != 1:
            raise ValueError(f"give one of users, rate and trace, not {' and '.join(loads) or 'none'}")
        if self.spawn_rate is not None and self.users is None:
            raise ValueError("spawn_rate belongs to users")
        if self.arrivals != "constant" and self.rate is None:
            raise ValueError("arrivals belongs to a rate")
        return self

    @property
    def is_open(self) -> bool:
        """Whether the loop is open: requests are due at scheduled times."""
        return self.users is None

    @property
    def loop(self) -> Loop:
        """The loop type, which determines the kind of latency that the stage measures."""
        return "open" if self.is_open else "closed"

    @property
    def label(self) -> str:
        """The name of the stage, or a description of its load."""
        if self.name:
            return self.name
        if self.users is not None:
            return f"{self.users} user{'' if self.users == 1 else 's'}"
        if self.rate is None:
            return f"trace {self.trace}"
        return f"{self.rate:,g}/s{' Poisson' if self.arrivals == 'poisson' else ''}"


class LatencyLimit(Record):
    """Latency limit: the largest acceptable latency."""

    percentile: Annotated[Number, Field(gt=0, le=100)] = Field(default=95, description="Of the requests of a stage.")
    milliseconds: Positive = Field(description="The limit.")


class StopConditions(Record):
    """Stop conditions that end a test, or one of its stages, early."""

    latency: LatencyLimit | None = Field(default=None, description="Ends the test: a percentile exceeds the limit.")
    error_rate: Part | None = Field(default=None, description="Ends the test: a larger share of the requests fails.")
    flat_throughput: Part | None = Field(
        default=None,
        description="Ends the test: a stage with more load has a throughput that is higher by less than this share.",
    )
    confidence: Annotated[Part, Field(gt=0)] | None = Field(
        default=None,
        description="Ends a stage: the 95 % confidence interval of its mean latency is at most ± this share of it.",
    )
    invocations_per_minute: PositiveCount | None = Field(
        default=None,
        description="Ends the test: a stage answers this many requests per minute, the most that are expected"
        " (MaxInvocations of SageMaker's Inference Recommender).",
    )
    min_requests: PositiveCount = Field(default=20, description="Requests of a stage before a limit is applied.")

    def describe(self) -> list[str]:
        """Describe each condition."""
        lines = []
        if self.latency is not None:
            lines.append(f"p{self.latency.percentile:g} above {self.latency.milliseconds:g} ms")
        if self.error_rate is not None:
            lines.append(f"more than {100 * self.error_rate:g} % failed")
        if self.flat_throughput is not None:
            lines.append(f"throughput grows by less than {100 * self.flat_throughput:g} % with more load")
        if self.invocations_per_minute is not None:
            lines.append(f"{self.invocations_per_minute:,} requests answered per minute")
        if self.confidence is not None:
            lines.append(f"mean latency known to ± {100 * self.confidence:g} % (ends the stage)")
        return lines


class LoadPlan(Record):
    """Load plan: the stages of a load test and their common settings."""

    stages: Annotated[tuple[Stage, ...], Field(min_length=1)] = Field(description="In their order.")
    warm_up: Stage | None = Field(
        default=None, description="Runs first and is in no result; the load of the first stage for 5 s when left out."
    )
    stop_when: StopConditions = Field(default=StopConditions(), description="What ends the test early.")
    pacing_seconds: Seconds | None = Field(
        default=None,
        description="Closed loop: least time between two requests of a user; a latency counts from the due time.",
    )
    timeout_seconds: Seconds = Field(default=60, description="How long an answer may take; a later one is a failure.")
    max_in_flight: PositiveCount = Field(
        default=1000, description="Open loop: unanswered requests of a client process; further ones wait."
    )
    processes: PositiveCount = Field(default=1, description="Client processes: one, or Locust workers on this machine.")
    seed: NonNegativeCount = Field(default=0, description="Determines payload order and Poisson arrivals.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.pacing_seconds is not None and all(stage.is_open for stage in self.stages):
            raise ValueError("pacing_seconds belongs to users, and no stage has any")
        return self

    def with_warm_up(self) -> LoadPlan:
        """Return the plan with the default warm-up if it has none."""
        if self.warm_up is not None:
            return self
        first = self.stages[0]
        if first.rate is not None:
            warm_up = Stage(rate=first.rate, arrivals=first.arrivals, seconds=WARM_UP_SECONDS)
        else:
            warm_up = Stage(users=first.users or 1, spawn_rate=first.spawn_rate, seconds=WARM_UP_SECONDS)
        return self.model_copy(update={"warm_up": warm_up})


@dataclass(frozen=True)
class ScheduledStage:
    """Stage with its scheduled time.

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
        """The end time of the stage."""
        return self.at + self.seconds


def schedule_stages(plan: LoadPlan) -> tuple[ScheduledStage, ...]:
    """Return the stages with their times.

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
    """Schedule a stage at a start time.

    Raises:
        UsageError: its trace cannot be read.
    """
    trace = tuple(read_trace(Path(stage.trace))) if stage.trace else ()
    # A trace without a duration is sent whole, including what is due at its very end.
    default = math.floor(trace[-1]) + 1.0 if trace else DEFAULT_STAGE_SECONDS
    return ScheduledStage(stage, at, stage.seconds or default, trace)


def arrival_times(kind: str, rate: float, trace: list[float], seed: str) -> Iterator[float]:
    """Yield arrival times in seconds after the start of the stage; endless except for a trace.

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
    """Select every n-th arrival: the share of one of several clients.

    Args:
        arrivals: all of them.
        client: its number, from 0.
        clients: how many there are.
        seconds: duration of the stage; later arrivals are left out.
    """
    return itertools.takewhile(lambda at: at < seconds, itertools.islice(arrivals, client, None, clients))


def read_trace(path: Path) -> list[float]:
    """Read the arrival times of a file, one per line, in seconds after the first of them.

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
