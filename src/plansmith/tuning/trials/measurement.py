"""The measurement of one configuration under load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any, Protocol

from plansmith.records.model import Record
from plansmith.tuning.configuration import Configuration

_RATIOS = ("throughput", "p50_ms", "p90_ms", "p95_ms", "p99_ms")
_OPTIONAL = ("memory_bytes", "batch_size", "queue_ms", "cores")


class Measurement(Record):
    """What a load test of one stage showed.

    Attributes:
        seconds: over which requests were counted.
        requests: answered or failed.
        failed: of these.
        throughput: inferences (samples) per second.
        p50_ms: latency of the answered requests in milliseconds; likewise the other percentiles.
        memory_bytes: largest memory of the server, or of its GPUs; None where unknown.
        batch_size: mean achieved batch; None where unknown.
        queue_ms: mean time of a request in the queue; None where unknown.
        cores: CPU seconds of the server per second; None where unknown.
        notes: what a reader has to know to read the figures correctly.
    """

    seconds: float
    requests: int
    failed: int = 0
    throughput: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    memory_bytes: int | None = None
    batch_size: float | None = None
    queue_ms: float | None = None
    cores: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def error_rate(self) -> float:
        """The share of the requests that failed."""
        return self.failed / self.requests if self.requests else 1.0

    @property
    def answered(self) -> int:
        """Requests that were answered."""
        return self.requests - self.failed

    @property
    def is_answered(self) -> bool:
        """Whether any request was answered in the measured time."""
        return self.answered > 0 and self.throughput > 0


class TrialFailed(Exception):
    """A configuration cannot be served, or its server died or hung: the reason, in one line.

    It is the result of a trial, and does not end the search.
    """


class Benchmark(Protocol):
    """Measures configurations."""

    def __call__(self, configuration: Configuration, seconds: float, /) -> Measurement:
        """Serve a configuration and put it under load for so many seconds.

        Raises:
            TrialFailed: the configuration cannot be served.
            PlansmithError: the machine is at fault, which ends the search.
        """
        ...


def mean_measurement(measurements: Sequence[Measurement]) -> Measurement:
    """The mean of one or more measurements: of rates and latencies the geometric one, as ratios are compared.

    Requests and failures are added up; a measurement in which a figure is unknown does not count for it.
    """
    means: dict[str, Any] = {name: _geometric_mean([getattr(one, name) for one in measurements]) for name in _RATIOS}
    for name in _OPTIONAL:
        if known := [value for one in measurements if (value := getattr(one, name)) is not None]:
            means[name] = fmean(known)
    if "memory_bytes" in means:
        means["memory_bytes"] = round(means["memory_bytes"])
    return Measurement(
        seconds=sum(one.seconds for one in measurements),
        requests=sum(one.requests for one in measurements),
        failed=sum(one.failed for one in measurements),
        notes=tuple(dict.fromkeys(note for one in measurements for note in one.notes)),
        **means,
    )


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(fmean(map(math.log, values))) if min(values) > 0 else 0.0
