"""Monitors a Triton while a stage is measured: its statistics, its metrics, and its processes where they are local."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from typing import Self

from plansmith.errors import PlansmithError, first_line
from plansmith.loadtest.results import ModelStatistics, ServerUsage
from plansmith.loadtest.server.metrics import (
    Gauges,
    cpu_seconds,
    cpu_seconds_between,
    gpu_usage,
    mean_host_cpu,
    read_gauges,
)
from plansmith.loadtest.server.statistics import Counters, counters_from_rows, other_models, statistics_between
from plansmith.system.urls import Address
from plansmith.triton.client.connection import Connection
from plansmith.triton.server.memory import group_bytes, is_measurable

_SAMPLE_SECONDS = 1.0
_TIMEOUT_SECONDS = 5.0
_SETTLE_ATTEMPTS, _SETTLE_SECONDS = 5, 0.02


class ServerMonitor:
    """Monitors a Triton; what it does not tell is left out.

    Args:
        address: where it answers.
        models: the tested ones, each with itself and its members; "MODEL@VERSION" where several versions are tested.
        metrics: `host:port` of its Prometheus metrics; empty where unknown.
        group: the process group of a server on this machine; None otherwise.
        headers: sent with each request.

    Attributes:
        others: further models that answered requests in any stage.
        error: why its statistics could not be read, the first time; empty where they could.
    """

    def __init__(
        self,
        address: Address,
        models: Mapping[str, Collection[str]],
        *,
        metrics: str,
        group: int | None,
        headers: Mapping[str, str],
    ) -> None:
        self.others: set[str] = set()
        self.error = ""
        self._address = address
        self._models = {model: frozenset(members) for model, members in models.items()}
        self._separate = {name for name, at, _ in (model.partition("@") for model in models) if at}
        self._metrics = metrics
        self._group = group
        self._headers = dict(headers)
        self._counters: Counters | None = None
        self._sampler = _UsageSampler(metrics, group)

    def begin(self) -> None:
        """The measured time begins."""
        self._sampler.stop()
        self._counters = self._read()
        self._sampler = _UsageSampler(self._metrics, self._group).start()

    def end(self) -> tuple[tuple[ModelStatistics, ...], ServerUsage]:
        """The measured time is over: what the server did in it, and its resources."""
        usage = self._sampler.stop()
        after = self._read_settled()
        if self._counters is None or after is None:
            return (), usage
        known = {*self._models, *(member for members in self._models.values() for member in members)}
        self.others.update(other_models(self._counters, after, known))
        return statistics_between(self._counters, after, self._models), usage

    def _read_settled(self) -> Counters | None:
        """The counters once they stay the same: Triton answers a moment before it counts."""
        counters = self._read()
        for _ in range(_SETTLE_ATTEMPTS):
            time.sleep(_SETTLE_SECONDS)
            before, counters = counters, self._read()
            if counters == before:
                break
        return counters

    def _read(self) -> Counters | None:
        try:
            with Connection(self._address, timeout_seconds=_TIMEOUT_SECONDS, headers=self._headers) as connection:
                return counters_from_rows(connection.statistics(), self._separate)
        except PlansmithError as error:
            self.error = self.error or error.message
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self.error = self.error or f"its statistics do not have Triton's form: {first_line(error)}"
        return None


class _UsageSampler:
    """Samples the resources of a server every second, from a thread of its own."""

    def __init__(self, metrics: str, group: int | None) -> None:
        self._metrics, self._group = metrics, group
        self._gauges: list[Gauges] = []
        self._max_bytes: int | None = None
        self._cpu_seconds: Mapping[int, float] = {}
        self._began = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> Self:
        """Begin."""
        self._cpu_seconds = cpu_seconds(self._group) if self._group is not None else {}
        self._began = time.monotonic()
        self._thread.start()
        return self

    def stop(self) -> ServerUsage:
        """The usage; empty where it never began, or was stopped before."""
        if self._thread.ident is None or self._stopped.is_set():
            return ServerUsage()
        after = cpu_seconds(self._group) if self._group is not None else {}
        seconds = time.monotonic() - self._began
        self._stopped.set()
        self._thread.join()
        self._sample()  # the only one of a short stage
        return ServerUsage(
            cores=cpu_seconds_between(self._cpu_seconds, after) / seconds if after and seconds else None,
            memory_bytes=self._max_bytes,
            host_cpu=mean_host_cpu(self._gauges),
            gpus=gpu_usage(self._gauges),
        )

    def _run(self) -> None:
        while not self._stopped.wait(_SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        gauges = read_gauges(self._metrics) if self._metrics else None
        if gauges is not None:
            self._gauges.append(gauges)
        if self._group is not None and is_measurable():
            size = group_bytes(self._group)
            if size:
                self._max_bytes = max(self._max_bytes or 0, size)
