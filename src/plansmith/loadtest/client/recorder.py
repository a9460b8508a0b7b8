"""Request recorder of a client process, which reports its counts about twice a second."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from plansmith.loadtest.results import Histogram

WARM_UP = -1
"""Number of the stage while the test warms up; nothing of it is counted."""


@dataclass
class RequestCounts:
    """Request counts of a model in a stage, or of a second.

    Attributes:
        answered: requests that were answered, whenever the answer came.
        failed: requests that failed.
        samples: in the answered ones.
        in_time: answers that came in the measured time of the stage, including those to earlier requests.
        samples_in_time: in these.
        latency: of the answered requests.
    """

    answered: int = 0
    failed: int = 0
    samples: int = 0
    in_time: int = 0
    samples_in_time: int = 0
    latency: Histogram = field(default_factory=Histogram)

    def to_list(self) -> list[Any]:
        """Return all counts as JSON, for another process."""
        counts = [self.answered, self.failed, self.samples, self.in_time, self.samples_in_time]
        return [*counts, self.latency.to_list()]

    def add_list(self, fields: list[Any]) -> None:
        """Add the counts of `to_list`."""
        answered, failed, samples, in_time, samples_in_time, latency = fields
        self.answered += answered
        self.failed += failed
        self.samples += samples
        self.in_time += in_time
        self.samples_in_time += samples_in_time
        self.latency.merge(Histogram.from_list(latency))


@dataclass
class InFlight:
    """In-flight request without an answer yet.

    Attributes:
        stage: the stage that counts it; None for the one in which it ends.
        model: number of its model.
        due: when it was due (`time.perf_counter`).
        began: the stage in which it was sent.
    """

    stage: int | None
    model: int
    due: float
    began: int


class Recorder:
    """Request recorder by stage, model and second; a report resets the counts.

    Attributes:
        stage: the current one.
        is_open: whether it is an open loop, in which answers to users of the stage before are not counted.
        is_measuring: whether its time is measured.
        in_flight: unanswered requests.
    """

    def __init__(self) -> None:
        self.stage = WARM_UP
        self.is_open = False
        self.is_measuring = False
        self.in_flight = 0
        self._zero: float | None = None
        self._last_failure: list[str] = []
        self._cpu_seconds = time.process_time()
        self._since = time.perf_counter()
        self._reset()

    def begin(self) -> None:
        """Start the clock of the first stage; seconds count from here."""
        self._zero = time.perf_counter()

    def measure(self, *, on: bool) -> None:
        """Start or end the measured time of the stage."""
        self._add_usage()
        self.is_measuring = on

    def answered(self, request: InFlight, samples: int) -> None:
        """Record a request answered just now."""
        now = time.perf_counter()
        milliseconds = (now - request.due) * 1000
        self._answers += 1
        if (counts := self._counts(request)) is not None:
            counts.answered += 1
            counts.samples += samples
            counts.latency.add(milliseconds)
        if self.is_measuring and self.stage != WARM_UP:
            current = self._stages[self.stage, request.model]
            current.in_time += 1
            current.samples_in_time += samples
        if self._zero is not None:
            second = self._seconds[int(now - self._zero), self.stage]
            second.answered += 1
            second.latency.add(milliseconds)

    def failed(self, request: InFlight, kind: str, message: str, *, is_answer: bool) -> None:
        """Record a request that failed just now.

        Args:
            request: that failed.
            kind: of the failure.
            message: the whole message.
            is_answer: the server answered, if only with an error.
        """
        if is_answer:
            self._answers += 1
        else:
            self._unanswered[kind] += 1
        self._last_failure = [kind, message]
        if (counts := self._counts(request)) is not None:
            counts.failed += 1
            self._failures.setdefault((self._stage_of(request), kind), [0, message])[0] += 1
        if self._zero is not None:
            self._seconds[int(time.perf_counter() - self._zero), self.stage].failed += 1

    def sent(self, late_seconds: float) -> None:
        """Record the delay between due time and sending of a request that did not wait for others."""
        if self.is_measuring and self.stage != WARM_UP:
            self._late[self.stage].add(late_seconds * 1000)

    def lagged(self, seconds: float) -> None:
        """Record how late a timer fired."""
        if self.is_measuring and self.stage != WARM_UP:
            self._lag[self.stage].add(seconds * 1000)

    def arrivals(self, stage: int, *, due: int = 0, sent: int = 0, held: int = 0) -> None:
        """Record open-loop requests that became due, were sent, or were held back by the in-flight limit."""
        if stage != WARM_UP:
            row = self._arrivals[stage]
            row[0] += due
            row[1] += sent
            row[2] += held

    def report(self) -> dict[str, Any]:
        """Return all counts since the last report as JSON."""
        self._add_usage()
        report = {
            "stages": [[*key, counts.to_list()] for key, counts in self._stages.items()],
            "seconds": [[*key, counts.to_list()] for key, counts in self._seconds.items()],
            "failures": [[*key, *row] for key, row in self._failures.items()],
            "late": [[stage, histogram.to_list()] for stage, histogram in self._late.items()],
            "lag": [[stage, histogram.to_list()] for stage, histogram in self._lag.items()],
            "arrivals": [[stage, *row] for stage, row in self._arrivals.items()],
            "usage": [[stage, *row] for stage, row in self._usage.items()],
            "answers": self._answers,
            "unanswered": dict(self._unanswered),
            "last_failure": self._last_failure,
            "in_flight": self.in_flight,
        }
        self._reset()
        return report

    def _reset(self) -> None:
        self._stages: defaultdict[tuple[int, int], RequestCounts] = defaultdict(RequestCounts)
        self._seconds: defaultdict[tuple[int, int], RequestCounts] = defaultdict(RequestCounts)
        self._failures: dict[tuple[int, str], list[Any]] = {}
        self._late: defaultdict[int, Histogram] = defaultdict(Histogram)
        self._lag: defaultdict[int, Histogram] = defaultdict(Histogram)
        self._arrivals: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
        self._usage: defaultdict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._answers = 0
        self._unanswered: defaultdict[str, int] = defaultdict(int)
        self._last_failure = []

    def _stage_of(self, request: InFlight) -> int:
        return self.stage if request.stage is None else request.stage

    def _counts(self, request: InFlight) -> RequestCounts | None:
        """Return the counts for a completed request: none in the warm-up, nor while users are starting."""
        stage = self._stage_of(request)
        is_unmeasured = request.stage is None and (self.is_open or not self.is_measuring)
        if is_unmeasured or WARM_UP in {stage, request.began}:
            return None
        return self._stages[stage, request.model]

    def _add_usage(self) -> None:
        cpu_seconds, now = time.process_time(), time.perf_counter()
        if self.is_measuring and self.stage != WARM_UP:
            row = self._usage[self.stage]
            row[0] += cpu_seconds - self._cpu_seconds
            row[1] += now - self._since
        self._cpu_seconds, self._since = cpu_seconds, now
