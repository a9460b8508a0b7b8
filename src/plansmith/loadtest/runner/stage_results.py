"""Stage results: computed from totals, with a check whether the client limited the load."""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from plansmith.loadtest.client.recorder import RequestCounts
from plansmith.loadtest.client.senders import CONNECTION
from plansmith.loadtest.results import ClientUsage, Failure, Histogram, RequestStats, Second, StageResult
from plansmith.loadtest.stages import Stage, StopConditions
from plansmith.loadtest.target import LoadTarget

_MIN_INTERVAL_SECONDS = 10
"""Seconds before a confidence interval is calculated: of fewer batch means it says little."""

_BUSY_CORES = 0.9
_MANY_DELAYS = 200
_MIN_SENT = 0.99
_MIN_RATE_SECONDS = 5.0
"""Over a shorter time a rate per minute says little."""

_MORE_PROCESSES = "use more client processes (--processes)"
_ELSEWHERE = (
    "the client gets too little CPU, or its requests are large: run it on a machine where nothing else is busy, or with"
    " smaller requests"
)
_REFUSED_SECONDS = 5.0
_SERVER_SILENT_SECONDS = 30.0
_SERVER_TIMES_SLOWEST = 10
_GRACE_SECONDS = 5.0


@dataclass
class StageTotals:
    """Counts of one stage.

    Attributes:
        models: requests by the number of their model.
        failures: by kind: how many, and the first message.
        late: delay between when requests were due and when they were sent.
        lag: delay of timers.
        due: open-loop requests that became due.
        sent: those of them that were sent.
        backlog: those of them that waited, or were dropped, because too many were in flight.
        usage: CPU seconds and seconds by client.
    """

    models: defaultdict[int, RequestCounts] = field(default_factory=lambda: defaultdict(RequestCounts))
    failures: dict[str, tuple[int, str]] = field(default_factory=dict)
    late: Histogram = field(default_factory=Histogram)
    lag: Histogram = field(default_factory=Histogram)
    due: int = 0
    sent: int = 0
    backlog: int = 0
    usage: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def all(self) -> RequestCounts:
        """The requests of all models."""
        total = RequestCounts()
        for counts in self.models.values():
            total.add_list(counts.to_list())
        return total

    @property
    def cores(self) -> float:
        """The CPU seconds per second of the busiest client."""
        return max((used / seconds for used, seconds in self.usage.values() if seconds), default=0.0)

    def failure_rows(self) -> tuple[Failure, ...]:
        """Return the failures by kind, most frequent first."""
        rows = sorted(self.failures.items(), key=lambda row: (-row[1][0], row[0]))
        return tuple(Failure(kind=kind, count=count, first=first) for kind, (count, first) in rows)


class Totals:
    """Totals of a load test.

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
            before, example = self.stages[stage].failures.get(kind, (0, first))
            self.stages[stage].failures[kind] = (before + count, example)
        for stage, fields in report["late"]:
            self.stages[stage].late.merge(Histogram.from_list(fields))
        for stage, fields in report["lag"]:
            self.stages[stage].lag.merge(Histogram.from_list(fields))
        for stage, due, sent, backlog in report["arrivals"]:
            totals = self.stages[stage]
            totals.due, totals.sent, totals.backlog = totals.due + due, totals.sent + sent, totals.backlog + backlog
        for stage, used, seconds in report["usage"]:
            before_used, before_seconds = self.stages[stage].usage.get(client, (0.0, 0.0))
            self.stages[stage].usage[client] = (before_used + used, before_seconds + seconds)
        self.in_flight[client] = report["in_flight"]
        if report["last_failure"]:
            self.last_failure = tuple(report["last_failure"])

    def note_users(self, second: int, users: int) -> None:
        """Record the current number of users."""
        self._users[second] = users

    def relative_interval(self, stage: int, first: int, last: int) -> float | None:
        """Return half the width of the 95 % confidence interval of a stage's mean latency, relative to the mean.

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
        """Return all seconds from the start of the first stage."""
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


_LATE_MS, _LATE_PART = 20.0, 0.1
"""A client is late whose delay is above this, and above this part of the p99 latency."""
_SILENT_SECONDS, _TIMES_SLOWEST = 5.0, 10


@dataclass(frozen=True)
class StageTimes:
    """Times of a completed stage, in seconds.

    Attributes:
        began: after the start of the first stage.
        total: its duration.
        measured: over which requests were counted.
        planned: its duration as planned.
        silent: at its end, in which nothing was answered while requests were in flight.
    """

    began: float
    total: float
    measured: float
    planned: float
    silent: float


def stage_result(target: LoadTarget, stage: Stage, totals: StageTotals, times: StageTimes, users: int) -> StageResult:
    """Return a stage's result, without the server's part; without figures if a client was saturated."""
    counts = totals.all
    client = client_usage(totals, is_open=stage.is_open)
    is_valid = not client.saturated
    models = {
        name: request_stats(totals.models.get(number, RequestCounts()), times.measured, is_valid=is_valid)
        for number, name in enumerate(target.names)
    }
    open_seconds = min(times.measured, times.planned)
    return StageResult(
        stage=stage,
        loop=stage.loop,
        began_seconds=times.began,
        seconds=times.total,
        measured_seconds=times.measured,
        users=0 if stage.is_open else users,
        stats=request_stats(counts, times.measured, is_valid=is_valid),
        models=models,
        offered=(totals.due / open_seconds if open_seconds else 0.0) if stage.is_open else None,
        failures=totals.failure_rows(),
        client=client,
    )


def request_stats(counts: RequestCounts, seconds: float, *, is_valid: bool) -> RequestStats:
    """Return the figures of counted requests."""
    has_rate = is_valid and seconds > 0
    return RequestStats(
        requests=counts.answered + counts.failed,
        failed=counts.failed,
        samples=counts.samples,
        throughput=counts.in_time / seconds if has_rate else None,
        samples_per_second=counts.samples_in_time / seconds if has_rate else None,
        latency=counts.latency.latency() if is_valid else None,
        buckets=dict(sorted(counts.latency.buckets.items())) if is_valid else {},
    )


def client_usage(totals: StageTotals, *, is_open: bool) -> ClientUsage:
    """Return the resources that the clients used, and whether they were saturated.

    Where as many requests are in flight as may be, the server does not answer, and the client can send: unless it has
    no CPU left to read answers.
    """
    late, lag = _delay(totals.late), _delay(totals.lag)
    sent_share = min(1.0, totals.sent / totals.due) if is_open and totals.due else 1.0
    limit = max(_LATE_MS, _LATE_PART * totals.all.latency.percentile(99))
    is_busy = totals.cores >= _BUSY_CORES
    is_short = sent_share < _MIN_SENT and (is_busy or not totals.backlog)
    signs = []
    if is_busy:
        signs.append(f"a client process used {totals.cores:.0%} of a core, and cannot use more than one")
    if lag > limit:
        signs.append(f"timers of a client process fired up to {lag:.0f} ms late")
    if late > limit:
        signs.append(f"requests were sent up to {late:.0f} ms after they were due")
    if is_short:
        signs.append(f"{sent_share:.1%} of the due requests were sent: the rate is beyond what the client can send")
    text = "; ".join(signs)
    if text:
        text += f": {_MORE_PROCESSES if is_busy or is_short else _ELSEWHERE}"
    return ClientUsage(cores=totals.cores, late_ms=late, loop_lag_ms=lag, sent_share=sent_share, saturated=text)


def _delay(delays: Histogram) -> float:
    """Return the p99 delay; the p90 of few delays, as a single one is no saturation."""
    return delays.percentile(99 if delays.count >= _MANY_DELAYS else 90)


def stage_notes(number: int, stage: Stage, totals: StageTotals, times: StageTimes) -> Iterator[str]:
    """Return notes for interpreting a stage's figures correctly.

    Args:
        number: of the stage, from 1.
        stage: as planned.
        totals: its counts.
        times: its times.
    """
    name = f"stage {number} ({stage.label})"
    counts = totals.all
    if not times.measured:
        yield f"{name}: it ended before all of its users had started, and nothing of it was measured"
    elif not counts.answered:
        yield f"{name}: no request was answered while it was measured"
    elif not counts.in_time:
        yield f"{name}: its requests were answered after it was over, so that its throughput is 0"
    elif times.silent > max(_SILENT_SECONDS, _TIMES_SLOWEST * counts.latency.percentile(99) / 1000):
        yield f"{name}: nothing was answered in its last {times.silent:.0f} s, and requests sent then are not counted"
    if totals.backlog:
        missing = totals.due - totals.sent
        rest = (
            f"{missing:,} of {totals.due:,} were not sent"
            if missing
            else f"{totals.backlog:,} of {totals.due:,} waited"
        )
        yield f"{name}: the server answers more slowly than requests are due: too many were in flight, and {rest}"


def exceeded_limit(stop: StopConditions, counts: RequestCounts, seconds: float) -> str:
    """Describe the limit that a stage's requests reach or exceed; empty for none.

    Args:
        stop: the limits.
        counts: the requests of the stage until now.
        seconds: over which they were measured.
    """
    requests = counts.answered + counts.failed
    if requests < stop.min_requests:
        return ""
    if stop.latency is not None and counts.answered:
        value = counts.latency.percentile(stop.latency.percentile)
        if value > stop.latency.milliseconds:
            return f"p{stop.latency.percentile:g} was {value:.4g} ms, above {stop.latency.milliseconds:g} ms"
    if stop.error_rate is not None and counts.failed / requests > stop.error_rate:
        return f"{counts.failed / requests:.1%} of the requests failed, more than {stop.error_rate:.1%}"
    if stop.invocations_per_minute is not None and seconds >= _MIN_RATE_SECONDS:
        rate = counts.in_time / seconds * 60
        if rate >= stop.invocations_per_minute:
            return f"{rate:,.0f} requests were answered per minute, and {stop.invocations_per_minute:,} are expected"
    return ""


def flat_throughput(stop: StopConditions, before: StageResult, after: StageResult) -> str:
    """Describe why a stage's throughput counts as flat; empty if it does not.

    Args:
        stop: the conditions.
        before: the previous stage.
        after: a stage with more load, if it is one.
    """
    loads = [result.stage.users or result.stage.rate or 0 for result in (before, after)]
    rates = [result.stats.throughput for result in (before, after)]
    if stop.flat_throughput is None or before.loop != after.loop or loads[1] <= loads[0]:
        return ""
    if rates[0] is None or rates[1] is None or rates[1] >= rates[0] * (1 + stop.flat_throughput):
        return ""
    return (
        f"throughput was {rates[1]:.4g}/s at {after.stage.label} and {rates[0]:.4g}/s at {before.stage.label}: it grew"
        f" by less than {stop.flat_throughput:.1%}"
    )


class Liveness:
    """Liveness check: how long a server has not answered.

    It is lost when it refuses connections for 5 s, or answers no request for 30 s and ten times as long as the slowest
    answer took; at most as long as a request may take, and 5 s.

    Args:
        timeout_seconds: how long an answer may take.

    Attributes:
        is_refusing: it has refused connections since it last answered.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self.is_refusing = False
        self._max_seconds = timeout_seconds + _GRACE_SECONDS
        self._slowest_seconds = timeout_seconds
        self._answered = time.monotonic()

    def begin(self) -> None:
        """Start the check; requests are sent from now on."""
        self._answered = time.monotonic()

    def add(self, report: dict[str, Any], slowest_ms: float, in_flight: int) -> None:
        """Process a client's report.

        Args:
            report: of one client.
            slowest_ms: the slowest answer until now.
            in_flight: unanswered requests of all clients.
        """
        if slowest_ms:
            self._slowest_seconds = slowest_ms / 1000
        if report["answers"] or not (in_flight or report["unanswered"]):
            self._answered = time.monotonic()
        if report["answers"]:
            self.is_refusing = False
        elif report["unanswered"].get(CONNECTION, 0):
            self.is_refusing = True

    @property
    def silent_seconds(self) -> float:
        """The time without an answer while requests were in flight."""
        return time.monotonic() - self._answered

    def loss(self) -> str:
        """Describe why the server counts as lost; empty if it does not."""
        seconds = self.silent_seconds
        if self.is_refusing and seconds > _REFUSED_SECONDS:
            return f"it refuses connections, and has answered nothing for {seconds:.0f} s"
        limit = min(max(_SERVER_SILENT_SECONDS, _SERVER_TIMES_SLOWEST * self._slowest_seconds), self._max_seconds)
        return f"it has answered nothing for {seconds:.0f} s" if seconds > limit else ""
