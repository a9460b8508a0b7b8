"""Sums of what the client processes report, by stage and second."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from plansmith.loadtest.client.recorder import RequestCounts
from plansmith.loadtest.histogram import Histogram
from plansmith.loadtest.results import Failure, Second

_MIN_INTERVAL_SECONDS = 10
"""Seconds before a confidence interval is calculated: of fewer batch means it says little."""


@dataclass
class StageTotals:
    """The counts of one stage.

    Attributes:
        models: requests by the number of their model.
        failures: by kind: how many, and the first message.
        late: delay between when requests were due and when they were sent.
        lag: delay of timers.
        due: open-loop requests that became due.
        sent: those of them that were sent.
        held: those of them that waited, or were dropped, because too many were in flight.
        usage: CPU seconds and seconds by client.
    """

    models: defaultdict[int, RequestCounts] = field(default_factory=lambda: defaultdict(RequestCounts))
    failures: dict[str, tuple[int, str]] = field(default_factory=dict)
    late: Histogram = field(default_factory=Histogram)
    lag: Histogram = field(default_factory=Histogram)
    due: int = 0
    sent: int = 0
    held: int = 0
    usage: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def all(self) -> RequestCounts:
        """Requests of all models."""
        total = RequestCounts()
        for counts in self.models.values():
            total.add_list(counts.to_list())
        return total

    @property
    def cores(self) -> float:
        """CPU seconds per second of the busiest client."""
        return max((used / seconds for used, seconds in self.usage.values() if seconds), default=0.0)

    def failure_rows(self) -> tuple[Failure, ...]:
        """Failures by kind, most frequent first."""
        rows = sorted(self.failures.items(), key=lambda row: (-row[1][0], row[0]))
        return tuple(Failure(kind=kind, count=count, first=first) for kind, (count, first) in rows)


class Totals:
    """The sums of a load test.

    Attributes:
        stages: by number.
        in_flight: unanswered requests by client.
        last_failure: kind and message of the latest.
    """

    def __init__(self) -> None:
        self.stages: defaultdict[int, StageTotals] = defaultdict(StageTotals)
        self.in_flight: dict[str, int] = {}
        self.last_failure: tuple[str, str] = ("", "")
        self._seconds: defaultdict[tuple[int, int], RequestCounts] = defaultdict(RequestCounts)
        self._users: dict[int, int] = {}

    def add(self, client: str, report: dict[str, Any]) -> None:
        """Add a client's report."""
        for stage, model, counts in report["stages"]:
            self.stages[stage].models[model].add_list(counts)
        for second, stage, counts in report["seconds"]:
            self._seconds[second, stage].add_list(counts)
        for stage, kind, count, first in report["failures"]:
            before, known = self.stages[stage].failures.get(kind, (0, first))
            self.stages[stage].failures[kind] = (before + count, known)
        for stage, fields in report["late"]:
            self.stages[stage].late.merge(Histogram.from_list(fields))
        for stage, fields in report["lag"]:
            self.stages[stage].lag.merge(Histogram.from_list(fields))
        for stage, due, sent, held in report["arrivals"]:
            totals = self.stages[stage]
            totals.due, totals.sent, totals.held = totals.due + due, totals.sent + sent, totals.held + held
        for stage, used, seconds in report["usage"]:
            before_used, before_seconds = self.stages[stage].usage.get(client, (0.0, 0.0))
            self.stages[stage].usage[client] = (before_used + used, before_seconds + seconds)
        self.in_flight[client] = report["in_flight"]
        if report["last_failure"]:
            self.last_failure = tuple(report["last_failure"])

    def note_users(self, second: int, users: int) -> None:
        """So many users are there."""
        self._users[second] = users

    def relative_interval(self, stage: int, first: int, last: int) -> float | None:
        """Half the width of the 95 % confidence interval of a stage's mean latency, relative to the mean.

        By the method of batch means, with seconds as batches (Law, Simulation Modeling and Analysis, 9.5.3).

        Args:
            stage: its number.
            first: its first whole measured second.
            last: the second after its last whole one.

        Returns:
            None where too few seconds have answers.
        """
        cells = [
            self._seconds[second, stage].latency for second in range(first, last) if (second, stage) in self._seconds
        ]
        means = [cell.sum_ms / cell.count for cell in cells if cell.count]
        if len(means) < _MIN_INTERVAL_SECONDS:
            return None
        # Student's t for 95 %: within 1 % of the table from 9 degrees of freedom on.
        t = 1.96 + 2.72 / (len(means) - 1)
        return t * statistics.stdev(means) / math.sqrt(len(means)) / statistics.fmean(means)

    def timeline(self) -> tuple[Second, ...]:
        """All seconds from the start of the first stage."""
        stages: dict[int, int] = {}
        by_second: defaultdict[int, RequestCounts] = defaultdict(RequestCounts)
        for (second, stage), counts in self._seconds.items():
            stages[second] = max(stage, stages.get(second, 0))
            by_second[second].add_list(counts.to_list())
        users = 0
        timeline: list[Second] = []
        for at in range(max(by_second, default=-1) + 1):
            users = self._users.get(at, users)
            counts = by_second[at]
            latency = counts.latency.latency()
            timeline.append(
                Second(
                    at=at,
                    stage=stages.get(at, timeline[-1].stage if timeline else 0),
                    users=users,
                    answered=counts.answered,
                    failed=counts.failed,
                    p50_ms=latency.p50_ms if latency else None,
                    p95_ms=latency.p95_ms if latency else None,
                )
            )
        return tuple(timeline)
