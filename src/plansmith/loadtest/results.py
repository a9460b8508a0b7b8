"""Load test results as records: stored as JSON, shown in the terminal and on the HTML page.

Latencies are in milliseconds, from the time at which a request was due until its whole answer was there: in a closed
loop without pacing, when it was sent. They are counted in buckets of 1 % width, so that percentiles are right to 1 %. A
failed request has no latency. Stages in which the client was saturated have no figures.
"""

from __future__ import annotations

import math
from typing import Any, Literal, Self

from pydantic import Field

from plansmith.loadtest.stages import LoadPlan, Loop, Stage
from plansmith.loadtest.target import LoadTarget
from plansmith.records.model import Record

Ending = Literal["done", "threshold", "server-lost", "client-lost", "interrupted"]
_WIDTH = math.log(1.01)
_MIN_MS = 1e-3


class Latency(Record):
    """Latency figures of the answered requests, in milliseconds."""

    mean_ms: float
    min_ms: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


class Failure(Record):
    """Failure kind: `timeout`, `connection`, or `HTTP 400` and the like; `first` is the complete first message."""

    kind: str
    count: int
    first: str


class RequestStats(Record):
    """Request statistics of a stage, or of one model in it.

    Attributes:
        requests: those that were answered or failed.
        failed: those of them that failed.
        samples: in the answered requests.
        throughput: answers per second; None where the client was saturated.
        samples_per_second: in these answers.
        latency: of the answered ones; None where none was answered, or the client was saturated.
        buckets: latencies by bucket (`client.histogram`).
    """

    requests: int = 0
    failed: int = 0
    samples: int = 0
    throughput: float | None = None
    samples_per_second: float | None = None
    latency: Latency | None = None
    buckets: dict[int, int] = Field(default_factory=dict)

    @property
    def answered(self) -> int:
        """The number of answered requests."""
        return self.requests - self.failed

    @property
    def error_rate(self) -> float:
        """The share of failed requests."""
        return self.failed / self.requests if self.requests else 0.0


class ModelStatistics(Record):
    """Triton's statistics of one model over a stage: differences of its counters.

    Attributes:
        model: its name; the members of an ensemble have entries of their own.
        member_of: the tested models that it is a member of.
        inferences: samples.
        executions: batches.
        batches: executions by batch size.
        queue_ms: mean time of a request in the queue, in milliseconds; likewise the others.
        compute_input_ms: preparing inputs.
        compute_ms: inference.
        compute_output_ms: preparing outputs.
        cache_hits: requests that the response cache answered.
        failed: requests that Triton counts as failed.
    """

    model: str
    member_of: tuple[str, ...] = ()
    inferences: int
    executions: int
    batches: dict[int, int] = Field(default_factory=dict)
    queue_ms: float = 0
    compute_input_ms: float = 0
    compute_ms: float = 0
    compute_output_ms: float = 0
    cache_hits: int = 0
    failed: int = 0

    @property
    def batch_size(self) -> float:
        """The mean achieved batch size; 0 without executions."""
        return self.inferences / self.executions if self.executions else 0.0


class GpuUsage(Record):
    """GPU usage over a stage: mean utilization (0 to 1) and power, largest memory."""

    gpu: str
    utilization: float | None = None
    memory_bytes: int | None = None
    watts: float | None = None


class ServerUsage(Record):
    """Server resources over a stage; None where unknown.

    Attributes:
        cores: CPU seconds per second of the server's processes (server on this machine).
        memory_bytes: their largest memory (server on this machine).
        host_cpu: busy share of the host's CPUs, 0 to 1 (Triton's nv_cpu_utilization).
        gpus: those that Triton reports.
    """

    cores: float | None = None
    memory_bytes: int | None = None
    host_cpu: float | None = None
    gpus: tuple[GpuUsage, ...] = ()


class ClientUsage(Record):
    """Client usage, and whether the client kept up.

    Attributes:
        cores: CPU seconds per second of the busiest client process; near 1 it is the limit.
        late_ms: delay between when a request was due and when it was sent: p99, of fewer than 200 requests p90.
        loop_lag_ms: delay of a timer in a client process, likewise.
        sent_share: open loop: share of the due requests that were sent in the stage.
        saturated: why the client and not the server limited the load; empty where it did not.
    """

    cores: float = 0
    late_ms: float = 0
    loop_lag_ms: float = 0
    sent_share: float = 1
    saturated: str = ""


class StageResult(Record):
    """Result of one stage.

    Attributes:
        stage: as planned.
        loop: the kind of its latencies, closed or open.
        began_seconds: after the start of the first stage.
        seconds: its duration, including the time in which users started.
        measured_seconds: over which requests were counted: with all users there.
        users: that were there at the end (closed loop).
        stats: of all requests; per model of `target.names` in `models`.
        offered: requests due per second (open loop).
        failures: by kind, most frequent first.
        server_models: Triton's statistics; empty where they are unknown.
        server: its resources.
        client: whether it kept up.
        stopped: why the test or the stage ended early; empty where it did not.
    """

    stage: Stage
    loop: Loop
    began_seconds: float
    seconds: float
    measured_seconds: float
    users: int = 0
    stats: RequestStats = RequestStats()
    models: dict[str, RequestStats] = Field(default_factory=dict)
    offered: float | None = None
    failures: tuple[Failure, ...] = ()
    server_models: tuple[ModelStatistics, ...] = ()
    server: ServerUsage = ServerUsage()
    client: ClientUsage = ClientUsage()
    stopped: str = ""

    @property
    def is_valid(self) -> bool:
        """Whether the figures reflect the server: the client was not saturated."""
        return not self.client.saturated


class Second(Record):
    """One second of the timeline: requests that ended in it, and the latencies of answered ones."""

    at: int
    stage: int
    users: int
    answered: int
    failed: int
    p50_ms: float | None = None
    p95_ms: float | None = None


class LoadReport(Record):
    """Report of a load test.

    Attributes:
        target: server and models.
        plan: as carried out, with the warm-up.
        server: the server in words, such as "Triton 2.51.0".
        configuration: config.pbtxt of each model, where the server tells it.
        releases: "MODEL@VERSION" of each model, where known.
        machine: the client's CPU, cores and memory in words.
        inputs: where the requests to each model come from.
        began_at: UTC.
        seconds: duration of everything, including the warm-up.
        stages: those that began.
        timeline: by second.
        ending: how it ended.
        reason: why, where it did not end as planned.
        notes: what a reader has to know to read the figures correctly.
    """

    target: LoadTarget
    plan: LoadPlan
    server: str = ""
    configuration: dict[str, str] = Field(default_factory=dict)
    releases: dict[str, str] = Field(default_factory=dict)
    machine: str = ""
    inputs: dict[str, str] = Field(default_factory=dict)
    began_at: str
    seconds: float = 0
    stages: tuple[StageResult, ...] = ()
    timeline: tuple[Second, ...] = ()
    ending: Ending = "done"
    reason: str = ""
    notes: tuple[str, ...] = ()


class Histogram:
    """Latency histogram in milliseconds: bucket i holds values from 1.01^i up to 1.01^(i + 1).

    A percentile is the geometric middle of its bucket, within 0.5 % of all values in it. Mean, minimum and maximum are
    exact.

    Attributes:
        buckets: count by bucket.
        count: of all values.
        sum_ms: of all values.
        min_ms: infinite where there is none.
        max_ms: 0 where there is none.
    """

    def __init__(self) -> None:
        self.buckets: dict[int, int] = {}
        self.count = 0
        self.sum_ms = 0.0
        self.min_ms = math.inf
        self.max_ms = 0.0

    def add(self, milliseconds: float) -> None:
        """Count one value; values below a microsecond count as one microsecond."""
        value = max(milliseconds, _MIN_MS)
        bucket = math.floor(math.log(value) / _WIDTH)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1
        self.count += 1
        self.sum_ms += value
        self.min_ms = min(self.min_ms, value)
        self.max_ms = max(self.max_ms, value)

    def merge(self, other: Histogram) -> None:
        """Add all values of another histogram."""
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count
        self.count += other.count
        self.sum_ms += other.sum_ms
        self.min_ms = min(self.min_ms, other.min_ms)
        self.max_ms = max(self.max_ms, other.max_ms)

    def percentile(self, percent: float) -> float:
        """Return a percentile: the smallest value that this share does not exceed, accurate to 1 %; 0 if empty.

        Args:
            percent: from 0 to 100.
        """
        rank = max(1, math.ceil(self.count * percent / 100))
        cumulative = 0
        for bucket in sorted(self.buckets):
            cumulative += self.buckets[bucket]
            if cumulative >= rank:
                return min(max(math.exp(_WIDTH * (bucket + 0.5)), self.min_ms), self.max_ms)
        return 0.0

    def latency(self) -> Latency | None:
        """Return the latency figures for a report; None if empty."""
        if not self.count:
            return None
        return Latency(
            mean_ms=self.sum_ms / self.count,
            min_ms=self.min_ms,
            p50_ms=self.percentile(50),
            p90_ms=self.percentile(90),
            p95_ms=self.percentile(95),
            p99_ms=self.percentile(99),
            max_ms=self.max_ms,
        )

    def to_list(self) -> list[Any]:
        """Return the histogram as JSON, for another process."""
        return [list(self.buckets.items()), self.sum_ms, self.min_ms if self.count else 0.0, self.max_ms]

    @classmethod
    def from_list(cls, fields: list[Any]) -> Self:
        """Rebuild a histogram from `to_list`."""
        histogram = cls()
        buckets, histogram.sum_ms, minimum, histogram.max_ms = fields
        histogram.buckets = {int(bucket): int(count) for bucket, count in buckets}
        histogram.count = sum(histogram.buckets.values())
        histogram.min_ms = float(minimum) if histogram.count else math.inf
        return histogram


def lower_bound_ms(bucket: int) -> float:
    """Return the lower bound of a bucket in milliseconds."""
    return math.exp(_WIDTH * bucket)
