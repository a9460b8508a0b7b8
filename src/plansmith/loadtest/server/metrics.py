"""Resources of a server: its Prometheus gauges, and the CPU time of its processes.

Names and units of the gauges: Triton server, docs/user_guide/metrics.md.
"""

from __future__ import annotations

import http.client
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from plansmith.loadtest.results import GpuUsage

_TIMEOUT_SECONDS = 2
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


def read_gauges(place: str) -> Gauges | None:
    """The gauges at `host:port`; None where they cannot be read."""
    with suppress(OSError, http.client.HTTPException, ValueError):
        connection = http.client.HTTPConnection(place, timeout=_TIMEOUT_SECONDS)
        try:
            connection.request("GET", "/metrics")
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
            return parse_gauges(text) if response.status == http.client.OK else None
        finally:
            connection.close()
    return None


def parse_gauges(text: str) -> Gauges:
    """The gauges of CPU and GPUs in the text of the metrics."""
    matches = (_LINE.fullmatch(line) for line in text.splitlines())
    kept = {_CPU, *_MEMORY, *_GPU_FIELDS}
    gauges = (match for match in matches if match is not None and match[1] in kept)
    return {(match[1], match[2] or ""): float(match[3]) for match in gauges if match[3] != "NaN"}


def mean_host_cpu(readings: Sequence[Gauges]) -> float | None:
    """The mean busy share of the host's CPUs; None where no reading has it."""
    return _mean([reading[_CPU, ""] for reading in readings if (_CPU, "") in reading])


def gpu_usage(readings: Sequence[Gauges]) -> tuple[GpuUsage, ...]:
    """Of each GPU, mean utilization and power over the readings, and the largest memory."""
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
    """The CPU time that each process of a group has used since it started.

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
    """What was used between two readings; nothing is known of a process that ended meanwhile."""
    return sum(max(0.0, used - before.get(process, 0.0)) for process, used in after.items())


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
