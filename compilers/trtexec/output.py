"""What trtexec says: its version, how it ended, and the figures of its build and of its measurement.

The forms are those of samples/common/sampleReporting.cpp, sampleEngines.cpp, sampleUtils.cpp and logger.cpp in
https://github.com/NVIDIA/TensorRT; `[MemUsageStats]` and `[MemUsageChange]` are the library's own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import Field

from plansmith.compilers.trt.logs import errors_of, read_lines, warnings_of
from plansmith.records.model import Record

_BANNER = re.compile(
    r"&&&& (?P<status>\w+) TensorRT\.trtexec \[TensorRT v(?P<number>[\d.]+)\](?: \[b(?P<build>\d+)\])?"
)
_TYPED = "Precision: Strongly Typed"
_ROWS = {
    "Latency": "latency",
    "Enqueue Time": "enqueue",
    "H2D Latency": "to_device",
    "GPU Compute Time": "compute",
    "D2H Latency": "to_host",
}
_ROW = re.compile(
    rf"^(?P<row>{'|'.join(_ROWS)}): min = (?P<min>\S+) ms, max = (?P<max>\S+) ms, mean = (?P<mean>\S+) ms,"
    r" median = (?P<median>\S+) ms(?P<percentiles>.*)$"
)
_PERCENTILE = re.compile(r"percentile\((?P<of>[\d.]+)%\) = (?P<value>[^\s,]+) ms")
_ENGINE = re.compile(r"^Created engine with size: (\S+) MiB")
_BUILT = re.compile(r"^Engine built in (\S+) sec")
_GENERATED = re.compile(r"^Engine generation completed in (\S+) seconds")
_DESERIALIZED = re.compile(r"^Engine deserialized in (\S+) sec")
_PARSED = re.compile(r"^Finished parsing network model\. Parse time: (\S+)")
_THROUGHPUT = re.compile(r"^Throughput: (\S+) qps")
_WALL = re.compile(r"^Total Host Walltime: (\S+) s")
_COMPUTED = re.compile(r"^Total GPU Compute Time: (\S+) s")
_CACHE_READ = re.compile(r"^Loaded (\d+) bytes of timing cache from")
_CACHE_WRITTEN = re.compile(r"^Saved (\d+) bytes of timing cache to")
_GPU_NAME = re.compile(r"^Selected Device: (.+)$")
_GPU_UUID = re.compile(r"^Selected Device UUID: (\S+)")
_CAPABILITY = re.compile(r"^Compute Capability: (\S+)")
_ALLOCATED = re.compile(
    r"\[MemUsageStats\] Peak memory usage of TRT CPU/GPU memory allocators: CPU \d+ MiB, GPU (\d+) MiB"
)
_HELD = re.compile(r"\[MemUsageStats\] Peak memory usage during Engine building and serialization: CPU: (\d+) MiB")
_NOW = re.compile(r"\[MemUsageChange\] .*now: CPU (\d+), GPU (\d+) \(MiB\)")


class Spread(Record):
    """One row of the summary, in milliseconds; `percentiles` by their number as it is printed, such as "99"."""

    minimum: float
    maximum: float
    mean: float
    median: float
    percentiles: dict[str, float] = Field(default_factory=dict)


class Speed(Record):
    """A measurement; a query is one execution, whatever its batch.

    `latency` is `to_device` + `compute` + `to_host`, of which TensorRT 11 leaves the transfers out by itself.
    """

    queries_per_second: float
    latency: Spread
    enqueue: Spread
    to_device: Spread
    compute: Spread
    to_host: Spread
    wall_seconds: float
    compute_seconds: float


class TrtexecOutput(Record):
    """A whole log of trtexec; None and empty for what it does not say.

    `version`: of TensorRT, three numbers and the build's where the banner has one ("10.16.1.11"); `ended`: by its last
    line, empty where it did not live to write it; `peak_device_mib`: most device memory that the builder's allocator
    held, without what CUDA itself takes; `peak_host_mib`: of the process, by the library; `now_mib`: what host and GPU
    held when the library last told.
    """

    version: str = ""
    ended: Literal["passed", "failed", ""] = ""
    strongly_typed: bool = False
    gpu_name: str = ""
    gpu_uuid: str = ""
    compute_capability: str = ""
    engine_mib: float | None = None
    build_seconds: float | None = None
    generation_seconds: float | None = None
    deserialize_seconds: float | None = None
    parse_seconds: float | None = None
    cache_read_bytes: int | None = None
    cache_written_bytes: int | None = None
    peak_device_mib: int | None = None
    peak_host_mib: int | None = None
    now_mib: tuple[int, int] | None = None
    speed: Speed | None = None
    warnings: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


def tensorrt_version(number: str) -> str:
    """The banner's number as a version: from TensorRT 10 on two digits each for minor and patch, before that one.

    NV_TENSORRT_VERSION in NvInferRuntimeBase.h: 101600 is 10.16.0, 8602 is 8.6.2.
    """
    if "." in number:
        return number
    value = int(number)
    if value >= 100000:
        return f"{value // 10000}.{value // 100 % 100}.{value % 100}"
    return f"{value // 1000}.{value // 100 % 10}.{value % 100}"


def banner_version(text: str) -> str:
    """The version that a banner in the text names, with the build's number where it has one; empty without a banner."""
    found = _BANNER.search(text)
    if found is None:
        return ""
    version = tensorrt_version(found["number"])
    return f"{version}.{found['build']}" if found["build"] and version.count(".") == 2 else version


def read_output(text: str) -> TrtexecOutput:
    """Read a whole log of trtexec, of any version from 8.5 on, also one that ends before its time."""
    lines = list(read_lines(text))
    said = [line.text.strip() for line in lines]
    return TrtexecOutput(
        version=banner_version(text),
        ended=_ended(text),
        strongly_typed=_TYPED in said,
        gpu_name=_last(said, _GPU_NAME),
        gpu_uuid=_last(said, _GPU_UUID),
        compute_capability=_last(said, _CAPABILITY),
        engine_mib=_number(said, _ENGINE),
        build_seconds=_number(said, _BUILT),
        generation_seconds=_number(said, _GENERATED),
        deserialize_seconds=_number(said, _DESERIALIZED),
        parse_seconds=_number(said, _PARSED),
        cache_read_bytes=_count(said, _CACHE_READ),
        cache_written_bytes=_count(said, _CACHE_WRITTEN),
        peak_device_mib=_most(said, _ALLOCATED),
        peak_host_mib=_most(said, _HELD),
        now_mib=_now(said),
        speed=_speed(said),
        warnings=tuple(warnings_of(lines)),
        errors=tuple(errors_of(lines)),
    )


def _ended(text: str) -> Literal["passed", "failed", ""]:
    statuses = [found["status"] for found in _BANNER.finditer(text)]
    if "FAILED" in statuses:
        return "failed"
    return "passed" if "PASSED" in statuses else ""


def _speed(said: Sequence[str]) -> Speed | None:
    """The summary, where all of it is there."""
    rows = {_ROWS[found["row"]]: _spread(found) for found in map(_ROW.match, said) if found}
    throughput, wall, computed = (_number(said, pattern) for pattern in (_THROUGHPUT, _WALL, _COMPUTED))
    if throughput is None or wall is None or computed is None or set(rows) != set(_ROWS.values()):
        return None
    return Speed(queries_per_second=throughput, wall_seconds=wall, compute_seconds=computed, **rows)


def _spread(row: re.Match[str]) -> Spread:
    return Spread(
        minimum=float(row["min"]),
        maximum=float(row["max"]),
        mean=float(row["mean"]),
        median=float(row["median"]),
        percentiles={found["of"]: float(found["value"]) for found in _PERCENTILE.finditer(row["percentiles"])},
    )


def _last(said: Iterable[str], pattern: re.Pattern[str]) -> str:
    """What the last line of a form says; empty without one."""
    return next((found[1] for found in map(pattern.search, reversed(list(said))) if found), "")


def _number(said: Iterable[str], pattern: re.Pattern[str]) -> float | None:
    try:
        value = float(_last(said, pattern))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _count(said: Iterable[str], pattern: re.Pattern[str]) -> int | None:
    found = _last(said, pattern)
    return int(found) if found else None


def _most(said: Iterable[str], pattern: re.Pattern[str]) -> int | None:
    """The largest number of all lines of a form: the library tells one per build, and trtexec may build twice."""
    return max((int(found[1]) for found in map(pattern.search, said) if found), default=None)


def _now(said: Iterable[str]) -> tuple[int, int] | None:
    found = next((found for found in map(_NOW.search, reversed(list(said))) if found), None)
    return (int(found[1]), int(found[2])) if found else None
