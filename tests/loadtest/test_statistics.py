"""What Triton's counters and gauges say of a stage."""

from __future__ import annotations

from typing import Any

import pytest

from plansmith.loadtest.monitor import (
    counters_from_rows,
    cpu_seconds_between,
    gpu_usage,
    mean_host_cpu,
    other_models,
    parse_gauges,
    statistics_between,
)

METRICS = """\
# TYPE nv_gpu_utilization gauge
nv_gpu_utilization{gpu_uuid="GPU-1"} %(utilization)s
nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} %(memory)s
nv_gpu_power_usage{gpu_uuid="GPU-1"} 61.5
nv_gpu_utilization{gpu_uuid="GPU-2"} NaN
nv_cpu_utilization %(cpu)s
nv_inference_count{model="a",version="1"} 4
"""


def row(name: str, version: str, inferences: int, executions: int, queue_ns: int) -> dict[str, Any]:
    """A row of Triton's statistics; over HTTP its numbers are text."""
    return {
        "name": name,
        "version": version,
        "inference_count": str(inferences),
        "execution_count": str(executions),
        "inference_stats": {
            "success": {"count": str(executions), "ns": "1"},
            "queue": {"count": str(executions), "ns": str(queue_ns)},
        },
        "batch_stats": [{"batch_size": 4, "compute_infer": {"count": executions, "ns": 7}}],
    }


def test_batches_and_queue_are_differences() -> None:
    """Versions of a model are summed; members are those of the ensemble that asks them; others are named."""
    before = counters_from_rows([row("net", "1", 10, 5, 5_000_000), row("part", "1", 1, 1, 1)])
    rows = [row("net", "1", 50, 15, 25_000_000), row("net", "2", 8, 2, 4_000_000), row("part", "1", 3, 2, 1)]
    after = counters_from_rows([*rows, row("other", "1", 1, 1, 1)])
    models = {"net": {"net"}, "whole": {"whole", "part"}}
    net, part = statistics_between(before, after, models)
    assert (net.inferences, net.executions, net.batch_size) == (48, 12, 4)
    assert net.queue_ms == pytest.approx(24 / 12)
    assert net.batches == {4: 12}
    assert (part.model, part.member_of) == ("part", ("whole",))
    assert other_models(before, after, {"net", "part"}) == ["other"]


def test_restarted_server_counts_anew() -> None:
    """Restarted server counts from its start."""
    before = counters_from_rows([row("net", "1", 100, 50, 9)])
    (net,) = statistics_between(before, counters_from_rows([row("net", "1", 8, 2, 0)]), {"net": {"net"}})
    assert (net.inferences, net.executions) == (8, 2)


def test_separate_versions_count_separately() -> None:
    """Versions that are tested separately count separately."""
    rows = [row("net", "1", 4, 1, 0), row("net", "2", 8, 2, 0)]
    counters = counters_from_rows(rows, {"net"})
    assert [entry.inferences for entry in statistics_between({}, counters, {"net@2": {"net@2"}})] == [8]


def test_gpu_utilization_and_memory_summarised() -> None:
    """A GPU that reports nothing has no figures, and no gauge of others is taken for one."""
    texts = [
        METRICS % {"utilization": "0.5", "memory": "2e9", "cpu": "0.25"},
        METRICS % {"utilization": "0.7", "memory": "1e9", "cpu": "0.75"},
    ]
    readings = [parse_gauges(text) for text in texts]
    (gpu,) = gpu_usage(readings)
    assert (gpu.gpu, gpu.memory_bytes, gpu.watts) == ("GPU-1", 2_000_000_000, 61.5)
    assert gpu.utilization == pytest.approx(0.6)
    assert mean_host_cpu(readings) == 0.5
    assert mean_host_cpu([]) is None


def test_cpu_time_counts_new_processes() -> None:
    """CPU time counts processes that began meanwhile."""
    assert cpu_seconds_between({1: 5.0, 2: 1.0}, {1: 7.5, 3: 0.5}) == 3.0
