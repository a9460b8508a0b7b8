"""Whether the client limited a stage, and when a stage meets a stop condition."""

from __future__ import annotations

import pytest

from plansmith.loadtest.client.recorder import RequestCounts
from plansmith.loadtest.results import Histogram, RequestStats, StageResult
from plansmith.loadtest.runner.stage_results import (
    StageTimes,
    StageTotals,
    Totals,
    client_usage,
    exceeded_limit,
    flat_throughput,
    stage_result,
)
from plansmith.loadtest.stages import LatencyLimit, Stage, StopConditions
from plansmith.loadtest.target import LoadTarget, TargetModel

TARGET = LoadTarget(place="127.0.0.1:8000", models=(TargetModel(model="net", payloads="payloads"),))
TIMES = StageTimes(began=0, total=10, measured=10, planned=10, silent=0)


def histogram_of(milliseconds: float) -> Histogram:
    histogram = Histogram()
    for _ in range(100):
        histogram.add(milliseconds)
    return histogram


def totals(
    *,
    cores: float = 0.2,
    lag_ms: float = 1,
    late_ms: float = 1,
    sent: int = 100,
    held: int = 0,
    latency_ms: float = 50,
) -> StageTotals:
    """Those of two clients, for 100 due requests."""
    result = StageTotals(
        late=histogram_of(late_ms),
        lag=histogram_of(lag_ms),
        due=100,
        sent=sent,
        backlog=held,
        usage={"a": (0.1, 10), "b": (10 * cores, 10)},
    )
    result.models[0] = RequestCounts(answered=100, in_time=100, latency=histogram_of(latency_ms))
    return result


SATURATED: dict[str, tuple[dict[str, float], str, str]] = {
    "CPU": ({"cores": 0.97}, "a client process used 97% of a core", "--processes"),
    "timers": ({"lag_ms": 80}, "timers of a client process fired up to 80 ms late", "nothing else is busy"),
    "sending": ({"late_ms": 80}, "sent up to 80 ms after they were due", "nothing else is busy"),
    "rate": ({"sent": 60}, "60.0% of the due requests were sent: the rate is beyond", "--processes"),
    "rate and CPU": ({"sent": 60, "held": 5, "cores": 1.0}, "the rate is beyond what the client", "--processes"),
}


@pytest.mark.parametrize(("changes", "sign", "remedy"), SATURATED.values(), ids=SATURATED.keys())
def test_saturated_client_figures_withheld(changes: dict[str, float], sign: str, remedy: str) -> None:
    """There is no throughput and no latency, and the reason says what to do."""
    result = stage_result(TARGET, Stage(rate=10), totals(**changes), TIMES, 0)  # type: ignore[arg-type]
    assert sign in result.client.saturated
    assert remedy in result.client.saturated
    for stats in (result.stats, result.models["net"]):
        assert (stats.throughput, stats.samples_per_second, stats.latency, stats.buckets) == (None, None, None, {})


def test_keeping_client_figures_reported() -> None:
    """Figures of a client that keeps up are reported."""
    result = stage_result(TARGET, Stage(rate=10), totals(), TIMES, 0)
    assert (result.client.saturated, result.stats.throughput, result.offered) == ("", 10, 10)
    assert result.stats.latency is not None


def test_single_delay_is_no_saturation() -> None:
    result = totals()
    result.lag.add(500)
    assert not client_usage(result, is_open=True).saturated


@pytest.mark.parametrize("lag_ms", [1, 20])
def test_slow_server_is_not_saturated_client(lag_ms: float) -> None:
    """Requests are held because too many are in flight, and small delays do not matter beside its latency."""
    assert not client_usage(totals(sent=60, held=40, lag_ms=lag_ms, latency_ms=3000), is_open=True).saturated


def test_limits_need_enough_requests() -> None:
    """A latency and an error rate are judged from the least number of requests on."""
    stop = StopConditions(latency=LatencyLimit(percentile=90, milliseconds=40), error_rate=0.2)
    counts = RequestCounts(answered=100, latency=histogram_of(50))
    assert exceeded_limit(stop, counts, 10).startswith("p90 was 50")
    assert exceeded_limit(stop, RequestCounts(answered=1, failed=9, latency=histogram_of(1)), 10) == ""
    assert exceeded_limit(stop, RequestCounts(answered=60, failed=40, latency=histogram_of(1)), 10).startswith(
        "40.0% of"
    )


def test_throughput_flattens_under_load() -> None:
    """Throughput is flat if more load adds little."""

    def result(users: int, throughput: float | None) -> StageResult:
        stats = RequestStats(throughput=throughput)
        stage = Stage(users=users)
        return StageResult(stage=stage, loop="closed", began_seconds=0, seconds=1, measured_seconds=1, stats=stats)

    stop = StopConditions(flat_throughput=0.05)
    assert "100/s at 8 users" in flat_throughput(stop, result(8, 100), result(16, 104))
    assert not flat_throughput(stop, result(8, 100), result(16, 110))
    assert not flat_throughput(stop, result(16, 100), result(8, 100))
    assert not flat_throughput(stop, result(8, 100), result(16, None))


def test_interval_narrows_with_steady_seconds() -> None:
    """Half the width of the 95 % interval of batch means, by hand for 10 seconds of 9 and 11 ms in turn."""
    sums = Totals()
    assert sums.relative_interval(0, 0, 10) is None
    for second in range(10):
        counts = RequestCounts(answered=1)
        counts.latency.add(9 if second % 2 else 11)
        sums.add("a", {**EMPTY, "seconds": [[second, 0, counts.to_list()]]})
    assert sums.relative_interval(0, 0, 10) == pytest.approx(2.262 * 1.0541 / 10**0.5 / 10, rel=0.01)
    assert sums.relative_interval(0, 0, 9) is None


EMPTY = {
    "stages": [],
    "failures": [],
    "late": [],
    "lag": [],
    "arrivals": [],
    "usage": [],
    "in_flight": 0,
    "last_failure": [],
}
