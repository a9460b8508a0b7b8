"""Stages of users or of an arrival rate, and the conditions that end a load test early.

Closed loop: each user sends a request, waits for the answer, and sends the next. Open loop: requests are due at times
that no answer changes, like those of independent clients. Each open-loop latency counts from the time at which the
request was due, so that a request that waits behind a slow answer is not left out: coordinated omission (Tene, How NOT
to Measure Latency, 2013).
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

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


class Stage(Record):
    """A period in which the load is constant, or ramps up to a constant: users, an arrival rate, or a trace."""

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
        """Whether requests are due at times of their own."""
        return self.users is None

    @property
    def loop(self) -> Loop:
        """What kind of latency the stage measures."""
        return "open" if self.is_open else "closed"

    @property
    def label(self) -> str:
        """Its name, or its load in words."""
        if self.name:
            return self.name
        if self.users is not None:
            return f"{self.users} user{'' if self.users == 1 else 's'}"
        if self.rate is None:
            return f"trace {self.trace}"
        return f"{self.rate:,g}/s{' Poisson' if self.arrivals == 'poisson' else ''}"


class LatencyLimit(Record):
    """The largest latency that is acceptable."""

    percentile: Annotated[Number, Field(gt=0, le=100)] = Field(default=95, description="Of the requests of a stage.")
    milliseconds: Positive = Field(description="The limit.")


class StopConditions(Record):
    """What ends a test, or one of its stages, early."""

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
        """Each condition in words."""
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
    """The stages of a load test and the settings of all of them."""

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
        """The plan with the default warm-up where it has none."""
        if self.warm_up is not None:
            return self
        first = self.stages[0]
        if first.rate is not None:
            warm_up = Stage(rate=first.rate, arrivals=first.arrivals, seconds=WARM_UP_SECONDS)
        else:
            warm_up = Stage(users=first.users or 1, spawn_rate=first.spawn_rate, seconds=WARM_UP_SECONDS)
        return self.model_copy(update={"warm_up": warm_up})
