"""The result of a stage from its totals, and whether the client limited the load."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from plansmith.loadtest.client.recorder import RequestCounts
from plansmith.loadtest.histogram import Histogram
from plansmith.loadtest.plan.stages import Stage, StopConditions
from plansmith.loadtest.results import ClientUsage, RequestStats, StageResult
from plansmith.loadtest.runner.totals import StageTotals
from plansmith.loadtest.target import LoadTarget

_BUSY_CORES = 0.9
_LATE_MS, _LATE_PART = 20.0, 0.1
"""A client is late whose delay is above this, and above this part of the p99 latency."""
_MANY_DELAYS = 200
_MIN_SENT = 0.99
_SILENT_SECONDS, _TIMES_SLOWEST = 5.0, 10
_MIN_RATE_SECONDS = 5.0
"""Over a shorter time a rate per minute says little."""
_MORE_PROCESSES = "use more client processes (--processes)"
_ELSEWHERE = (
    "the client gets too little CPU, or its requests are large: run it on a machine where nothing else is busy, or with"
    " smaller requests"
)


@dataclass(frozen=True)
class StageTimes:
    """The times of a stage that was run, in seconds.

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
    """The result of a stage, without the server's part; a saturated client has no figures."""
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
    """The figures of counted requests."""
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
    """What the clients used, and whether they were saturated.

    Where as many requests are in flight as may be, the server does not answer, and the client can send: unless it has
    no CPU left to read answers.
    """
    late, lag = _delay(totals.late), _delay(totals.lag)
    sent_share = min(1.0, totals.sent / totals.due) if is_open and totals.due else 1.0
    limit = max(_LATE_MS, _LATE_PART * totals.all.latency.percentile(99))
    is_busy = totals.cores >= _BUSY_CORES
    is_short = sent_share < _MIN_SENT and (is_busy or not totals.held)
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
    """Their p99; of a few their p90, as a single delay is no saturation."""
    return delays.percentile(99 if delays.count >= _MANY_DELAYS else 90)


def stage_notes(number: int, stage: Stage, totals: StageTotals, times: StageTimes) -> Iterator[str]:
    """What has to be known to read the figures of a stage correctly.

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
    if totals.held:
        missing = totals.due - totals.sent
        rest = (
            f"{missing:,} of {totals.due:,} were not sent" if missing else f"{totals.held:,} of {totals.due:,} waited"
        )
        yield f"{name}: the server answers more slowly than requests are due: too many were in flight, and {rest}"


def exceeded_limit(stop: StopConditions, counts: RequestCounts, seconds: float) -> str:
    """Which limit the requests of a stage exceed or reach, in words; empty for none.

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
    """Why the throughput of a stage counts as flat, in words; empty where it does not.

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
