"""A computed answer for every configuration of a space: no measurement, but shaped as servers behave on a CPU.

Batches cost a part that does not grow with them, threads help with losses, waiting for a batch costs time, and
closed-loop clients ask again when they are answered. `noise` is the spread of what is told, in parts of it; it is
drawn from the configuration, the length and the repeat, so that the same run shows the same.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from plansmith.records.model import EngineKind, Precision
from plansmith.tuning.configuration import PREFERENCES, Build, Configuration, SearchSpace, instances_within
from plansmith.tuning.trials.history import Measurement, TrialFailed

PYTHON = Build(engine=EngineKind.PYTHON, precision=Precision.FP32)
FP32 = Build(engine=EngineKind.ONNXRUNTIME, precision=Precision.FP32)
INT8 = Build(engine=EngineKind.ONNXRUNTIME, precision=Precision.INT8)

CURRENT = Configuration(build=FP32, max_batch_size=8, queue_delay_microseconds=100)

SPACE = SearchSpace(
    builds=(PYTHON, FP32, INT8),
    max_batch_sizes=(1, 2, 4, 8, 16),
    preferences=PREFERENCES,
    queue_delays=(0, 100, 1000, 5000),
    instances_and_threads=instances_within(4, has_threads=True),
)

_SAMPLE_MS = {PYTHON: 12.0, FP32: 6.0, INT8: 3.2}
_CALL_MS = {PYTHON: 9.0, FP32: 2.5, INT8: 2.0}


@dataclass
class Surface:
    """Answers as a server might.

    Args:
        users: that ask, each after its answer.
        cores: of the machine.
        noise: standard deviation of the logarithm of what a run of 8 s shows; short runs show more.
        seed: of the noise.
        fails: configurations that cannot be served, and why.
        requests: every run, in order.
    """

    users: int = 12
    cores: int = 4
    noise: float = 0.03
    seed: int = 0
    fails: Callable[[Configuration], str] = lambda _: ""
    requests: list[tuple[Configuration, float]] = field(default_factory=list)

    def __call__(self, configuration: Configuration, seconds: float) -> Measurement:
        self.requests.append((configuration, seconds))
        if reason := self.fails(configuration):
            raise TrialFailed(reason)
        repeat = sum(call == (configuration, seconds) for call in self.requests)
        rng = random.Random(hashlib.sha256(f"{self.seed} {configuration!r} {seconds} {repeat}".encode()).digest())
        factor = math.exp(rng.gauss(0, self.noise * math.sqrt(8 / seconds)))
        return self.true(configuration, seconds, factor)

    def true(self, configuration: Configuration, seconds: float = 8, factor: float = 1.0) -> Measurement:
        """Without noise, times a factor."""
        build, instances = configuration.build, configuration.instances
        threads = configuration.threads or self.cores
        waiting = max(1.0, self.users / instances)
        batch = min(float(max(configuration.max_batch_size, 1)), waiting)
        delay = (configuration.queue_delay_microseconds or 0) / 1000
        if configuration.queue_delay_microseconds is None:
            batch = 1.0
        elif delay < 0.5 and not configuration.preferred_batch_sizes:
            batch = 1 + (batch - 1) * 0.8
        busy = instances * threads / self.cores
        compute = (_CALL_MS[build] + _SAMPLE_MS[build] * batch) / threads**0.75 * max(1.0, busy) ** 1.1
        idle = delay if batch >= waiting and batch not in configuration.preferred_batch_sizes else 0.0
        per_batch = compute + idle
        throughput = instances * batch / per_batch * 1000 * factor
        latency = self.users / throughput * 1000
        return Measurement(
            seconds=seconds,
            requests=max(1, int(throughput * seconds)),
            throughput=throughput,
            p50_ms=latency,
            p90_ms=latency * 1.15,
            p95_ms=latency * 1.2,
            p99_ms=latency * 1.5,
            memory_bytes=(100 + 60 * instances) * 2**20,
            batch_size=batch,
        )
