"""Monitoring of a Triton server during a stage: its statistics, metrics and, where local, its processes."""

from __future__ import annotations

import http.client
import os
import re
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from plansmith.errors import PlansmithError, first_line
from plansmith.loadtest.results import GpuUsage, ModelStatistics, ServerUsage
from plansmith.system.urls import Address
from plansmith.triton.client.connection import Connection
from plansmith.triton.server.process import group_bytes, is_measurable

_METRICS_TIMEOUT_SECONDS = 2
_LINE = re.compile(r'(nv_\w+)(?:\{(?:[^}]*?gpu_uuid="([^"]*)")?[^}]*\})? ([-+.\deE]+|NaN)')
_CPU = "nv_cpu_utilization"
_GPU_FIELDS = {
    "nv_gpu_utilization": "utilization",
    "nv_gpu_memory_used_bytes": "memory_bytes",
    "nv_gpu_power_usage": "watts",
}
_MEMORY = {"nv_cpu_memory_total_bytes", "nv_cpu_memory_used_bytes", "nv_gpu_memory_total_bytes"}
_PROC = Path("/proc")
_GROUP, _USER, _SYSTEM = 2, 11, 12
"""Fields after the name in /proc/PID/stat: pgrp, utime and stime (Linux, proc(5))."""

Gauges = Mapping[tuple[str, str], float]
"""By name of the metric and UUID of the GPU, which is empty for the host's."""

_NS_PER_MS = 1e6
Counters = Mapping[str, Mapping[tuple[str, ...], int]]
"""By model, its counters by their path; summed over its versions, but for those that are separate."""

_SAMPLE_SECONDS = 1.0
_TIMEOUT_SECONDS = 5.0


def read_gauges(place: str) -> Gauges | None:
    """Read the gauges at `host:port`; None if they cannot be read."""
    with suppress(OSError, http.client.HTTPException, ValueError):
        connection = http.client.HTTPConnection(place, timeout=_METRICS_TIMEOUT_SECONDS)
        try:
            connection.request("GET", "/metrics")
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
            return parse_gauges(text) if response.status == http.client.OK else None
        finally:
            connection.close()
    return None


def parse_gauges(text: str) -> Gauges:
    """Parse the CPU and GPU gauges in the metrics text."""
    matches = (_LINE.fullmatch(line) for line in text.splitlines())
    names = {_CPU, *_MEMORY, *_GPU_FIELDS}
    gauges = (match for match in matches if match is not None and match[1] in names)
    return {(match[1], match[2] or ""): float(match[3]) for match in gauges if match[3] != "NaN"}


def mean_host_cpu(readings: Sequence[Gauges]) -> float | None:
    """Return the mean busy share of the host's CPUs; None if no reading has it."""
    return _mean([reading[_CPU, ""] for reading in readings if (_CPU, "") in reading])


def gpu_usage(readings: Sequence[Gauges]) -> tuple[GpuUsage, ...]:
    """Return per GPU the mean utilization and power over the readings, and the largest memory."""
    gpus = sorted({gpu for reading in readings for name, gpu in reading if name in _GPU_FIELDS and gpu})
    usage = []
    for gpu in gpus:
        values = {
            field: [reading[name, gpu] for reading in readings if (name, gpu) in reading]
            for name, field in _GPU_FIELDS.items()
        }
        memory = max(values["memory_bytes"], default=None)
        usage.append(
            GpuUsage(
                gpu=gpu,
                utilization=_mean(values["utilization"]),
                memory_bytes=None if memory is None else int(memory),
                watts=_mean(values["watts"]),
            )
        )
    return tuple(usage)


def cpu_seconds(group: int, proc: Path = _PROC) -> dict[int, float]:
    """Return the CPU time of each process of a group since its start.

    Args:
        group: its number.
        proc: where processes are described.
    """
    ticks = os.sysconf("SC_CLK_TCK")
    used = {}
    for folder in proc.iterdir():
        if folder.name.isdecimal():
            with suppress(OSError, ValueError, IndexError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(fields[_GROUP]) == group:
                    used[int(folder.name)] = (int(fields[_USER]) + int(fields[_SYSTEM])) / ticks
    return used


def cpu_seconds_between(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """Return the CPU time between two readings; processes that ended in between are unknown."""
    return sum(max(0.0, used - before.get(process, 0.0)) for process, used in after.items())


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def counters_from_rows(rows: Iterable[Mapping[str, Any]], separate: Collection[str] = ()) -> Counters:
    """Return the counters of all models of a server.

    Args:
        rows: as `Connection.statistics` returns them.
        separate: models whose versions count separately, as "MODEL@VERSION".
    """
    counters: dict[str, dict[tuple[str, ...], int]] = {}
    for row in rows:
        name = str(row["name"])
        model = counters.setdefault(f"{name}@{row.get('version', '')}" if name in separate else name, {})
        for path, value in _flatten(row):
            model[path] = model.get(path, 0) + value
    return counters


def statistics_between(
    before: Counters, after: Counters, models: Mapping[str, Collection[str]]
) -> tuple[ModelStatistics, ...]:
    """Return the model statistics between two readings.

    Args:
        before: the first reading.
        after: the second; the counters of a server that was restarted between them count from its start.
        models: the tested models, each with itself and its members.
    """
    differences = []
    for name in after:
        member_of = tuple(sorted(model for model, members in models.items() if name in members and name != model))
        if member_of or name in models:
            statistics = _statistics(name, _difference(before.get(name, {}), after[name]))
            differences.append(statistics.model_copy(update={"member_of": () if name in models else member_of}))
    return tuple(differences)


def other_models(before: Counters, after: Counters, models: Collection[str]) -> list[str]:
    """Return other models that answered requests between two readings, sorted."""
    grown = {name: _difference(before.get(name, {}), after[name]) for name in after if name not in models}
    return sorted(name for name, counters in grown.items() if counters.get(("inference_stats", "success", "count")))


def _flatten(row: Mapping[str, Any]) -> Iterable[tuple[tuple[str, ...], int]]:
    for name in ("inference_count", "execution_count"):
        yield (name,), int(row.get(name, 0))
    for kind, value in row.get("inference_stats", {}).items():
        for name in ("count", "ns"):
            yield ("inference_stats", kind, name), int(value.get(name, 0))
    for batch in row.get("batch_stats", ()):
        executions = batch.get("compute_infer", {}).get("count", 0)
        yield ("batch_stats", str(batch.get("batch_size", 0))), int(executions)


def _difference(
    before: Mapping[tuple[str, ...], int], after: Mapping[tuple[str, ...], int]
) -> dict[tuple[str, ...], int]:
    is_restarted = any(after.get(path, 0) < value for path, value in before.items())
    return {path: value - (0 if is_restarted else before.get(path, 0)) for path, value in after.items()}


def _statistics(model: str, counters: Mapping[tuple[str, ...], int]) -> ModelStatistics:
    def count(kind: str) -> int:
        return counters.get(("inference_stats", kind, "count"), 0)

    def mean_ms(kind: str) -> float:
        total = counters.get(("inference_stats", kind, "ns"), 0)
        return total / count(kind) / _NS_PER_MS if count(kind) else 0.0

    batches = sorted((int(path[1]), value) for path, value in counters.items() if path[0] == "batch_stats" and value)
    return ModelStatistics(
        model=model,
        inferences=counters.get(("inference_count",), 0),
        executions=counters.get(("execution_count",), 0),
        batches=dict(batches),
        queue_ms=mean_ms("queue"),
        compute_input_ms=mean_ms("compute_input"),
        compute_ms=mean_ms("compute_infer"),
        compute_output_ms=mean_ms("compute_output"),
        cache_hits=count("cache_hit"),
        failed=count("fail"),
    )


_SETTLE_ATTEMPTS, _SETTLE_SECONDS = 5, 0.02


class ServerMonitor:
    """Server monitor of a Triton; figures that the server does not report are left out.

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
        """Start the measured time."""
        self._sampler.stop()
        self._counters = self._read()
        self._sampler = _UsageSampler(self._metrics, self._group).start()

    def end(self) -> tuple[tuple[ModelStatistics, ...], ServerUsage]:
        """End the measured time, and return the server's statistics and resources."""
        usage = self._sampler.stop()
        after = self._read_settled()
        if self._counters is None or after is None:
            return (), usage
        model_names = {*self._models, *(member for members in self._models.values() for member in members)}
        self.others.update(other_models(self._counters, after, model_names))
        return statistics_between(self._counters, after, self._models), usage

    def _read_settled(self) -> Counters | None:
        """Read the counters once they are stable: Triton responds shortly before it counts."""
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
    """Resource sampler: measures the server's resource usage every second, in a thread."""

    def __init__(self, metrics: str, group: int | None) -> None:
        self._metrics, self._group = metrics, group
        self._gauges: list[Gauges] = []
        self._max_bytes: int | None = None
        self._cpu_seconds: Mapping[int, float] = {}
        self._began = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> Self:
        """Start sampling."""
        self._cpu_seconds = cpu_seconds(self._group) if self._group is not None else {}
        self._began = time.monotonic()
        self._thread.start()
        return self

    def stop(self) -> ServerUsage:
        """Stop sampling and return the usage; empty if it never started, or was already stopped."""
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
