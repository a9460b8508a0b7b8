"""An example of a load report: users that double, failures, and a saturated client at the end."""

from __future__ import annotations

from plansmith.loadtest.results import (
    ClientUsage,
    Failure,
    GpuUsage,
    Histogram,
    Latency,
    LoadReport,
    ModelStatistics,
    RequestStats,
    Second,
    ServerUsage,
    StageResult,
)
from plansmith.loadtest.stages import LatencyLimit, LoadPlan, Stage, StopConditions
from plansmith.loadtest.target import LoadTarget, TargetModel

SATURATED = "a client process used 98% of a core, and cannot use more than one: use more client processes (--processes)"
_SECONDS = 10


def example_report(*, label: str = "") -> LoadReport:
    """The report; `label` is the name of its first stage."""
    users, rates, p95_ms = (8, 16, 32, 64), (620.0, 760.0, 780.0, 810.0), (15.0, 24.0, 64.0, 140.0)
    stages = tuple(
        _stage(number, Stage(users=count, seconds=_SECONDS, name="" if number else label), rate, latency)
        for number, (count, rate, latency) in enumerate(zip(users, rates, p95_ms, strict=True))
    )
    return LoadReport(
        target=LoadTarget(place="127.0.0.1:8000", models=(TargetModel(model="minilm", payloads="payloads"),)),
        plan=LoadPlan(
            stages=tuple(result.stage for result in stages),
            warm_up=Stage(users=8, seconds=5),
            stop_when=StopConditions(latency=LatencyLimit(milliseconds=200)),
        ),
        server="Triton 2.51.0",
        configuration={"minilm": 'name: "minilm"\n'},
        releases={"minilm": "minilm@3"},
        machine="a processor, 8 cores, 32.0 GiB",
        inputs={"minilm": "the inputs that minilm@3 keeps, at mixed sizes"},
        began_at="2026-11-28T12:00:00+00:00",
        seconds=46.2,
        stages=stages,
        timeline=tuple(_second(at) for at in range(len(users) * _SECONDS)),
        notes=("server and client ran on one machine and shared its CPUs",),
    )


def _stage(number: int, stage: Stage, rate: float, p95_ms: float) -> StageResult:
    is_valid = number < 3
    failed = 15 if number == 2 else 0
    answered = round(rate * _SECONDS)
    latency = Latency(
        mean_ms=p95_ms / 2,
        min_ms=p95_ms / 8,
        p50_ms=p95_ms / 2,
        p90_ms=p95_ms * 0.8,
        p95_ms=p95_ms,
        p99_ms=p95_ms * 2,
        max_ms=p95_ms * 3,
    )
    stats = RequestStats(
        requests=answered + failed,
        failed=failed,
        samples=2 * answered,
        throughput=rate if is_valid else None,
        samples_per_second=2 * rate if is_valid else None,
        latency=latency if is_valid else None,
        buckets=_buckets(latency, answered) if is_valid else {},
    )
    return StageResult(
        stage=stage,
        loop=stage.loop,
        began_seconds=number * _SECONDS,
        seconds=_SECONDS,
        measured_seconds=_SECONDS,
        users=stage.users or 0,
        stats=stats,
        models={"minilm": stats},
        failures=_failures() if failed else (),
        server_models=(
            ModelStatistics(
                model="minilm",
                inferences=15000,
                executions=2000,
                batches={4: 1000, 11: 1000},
                queue_ms=4.5,
                compute_ms=6,
            ),
        ),
        server=ServerUsage(
            cores=1.9, memory_bytes=412 * 2**20, gpus=(GpuUsage(gpu="GPU-1", utilization=0.61, memory_bytes=2**31),)
        ),
        client=ClientUsage(cores=0.4 if is_valid else 0.98, saturated="" if is_valid else SATURATED),
    )


def _buckets(latency: Latency, count: int) -> dict[int, int]:
    """Latencies that rise evenly to the p95, and steeply from there."""
    histogram = Histogram()
    for number in range(count):
        share = (number + 0.5) / count
        tail = max(0.0, share - 0.95) / 0.05
        histogram.add(latency.min_ms + (latency.p95_ms - latency.min_ms) * share + 2 * latency.p95_ms * tail**4)
    return histogram.buckets


def _failures() -> tuple[Failure, ...]:
    return (
        Failure(kind="HTTP 503", count=12, first='{"error":"the queue is full"}'),
        Failure(kind="timeout", count=3, first="no answer within 60 s"),
    )


def _second(at: int) -> Second:
    stage = at // _SECONDS
    return Second(
        at=at,
        stage=stage,
        users=8 * 2**stage,
        answered=600 + 50 * stage,
        failed=3 if at in range(22, 27) else 0,
        p50_ms=8.0 * (stage + 1),
        p95_ms=15.0 * (stage + 1),
    )
