"""trtexec output: its version, exit status, and the figures of its build and its measurement.

The forms are those of samples/common/sampleReporting.cpp, sampleEngines.cpp, sampleUtils.cpp and logger.cpp in
https://github.com/NVIDIA/TensorRT; `[MemUsageStats]` and `[MemUsageChange]` are the library's own.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from plansmith.compilers.trt.failures import errors_of, read_lines, warnings_of
from plansmith.errors import EnvironmentFault
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

TRTEXEC_FOLDERS = (Path("/usr/src/tensorrt/bin"), Path("/opt/tensorrt/bin"))
"""Where NVIDIA's packages and containers put it."""

_SECONDS_TO_ANSWER = 60


class Spread(Record):
    """A row of the summary, in milliseconds; `percentiles` by number as printed, such as "99"."""

    minimum: float
    maximum: float
    mean: float
    median: float
    percentiles: dict[str, float] = Field(default_factory=dict)


class Speed(Record):
    """Performance summary; a query is one execution, whatever its batch.

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
    """Parsed trtexec log; None or empty for what it does not contain.

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
    """Convert the banner's number to a version: from TensorRT 10 on two digits each for minor and patch, else one.

    NV_TENSORRT_VERSION in NvInferRuntimeBase.h: 101600 is 10.16.0, 8602 is 8.6.2.
    """
    if "." in number:
        return number
    value = int(number)
    if value >= 100000:
        return f"{value // 10000}.{value // 100 % 100}.{value % 100}"
    return f"{value // 1000}.{value // 100 % 10}.{value % 100}"


def banner_version(text: str) -> str:
    """Return the version in a banner, with the build number if present; empty without a banner."""
    match = _BANNER.search(text)
    if match is None:
        return ""
    version = tensorrt_version(match["number"])
    return f"{version}.{match['build']}" if match["build"] and version.count(".") == 2 else version


def read_output(text: str) -> TrtexecOutput:
    """Parse a complete or truncated trtexec log, of any version from 8.5 on."""
    lines = list(read_lines(text))
    texts = [line.text.strip() for line in lines]
    return TrtexecOutput(
        version=banner_version(text),
        ended=_ended(text),
        strongly_typed=_TYPED in texts,
        gpu_name=_last(texts, _GPU_NAME),
        gpu_uuid=_last(texts, _GPU_UUID),
        compute_capability=_last(texts, _CAPABILITY),
        engine_mib=_number(texts, _ENGINE),
        build_seconds=_number(texts, _BUILT),
        generation_seconds=_number(texts, _GENERATED),
        deserialize_seconds=_number(texts, _DESERIALIZED),
        parse_seconds=_number(texts, _PARSED),
        cache_read_bytes=_count(texts, _CACHE_READ),
        cache_written_bytes=_count(texts, _CACHE_WRITTEN),
        peak_device_mib=_most(texts, _ALLOCATED),
        peak_host_mib=_most(texts, _HELD),
        now_mib=_now(texts),
        speed=_speed(texts),
        warnings=tuple(warnings_of(lines)),
        errors=tuple(errors_of(lines)),
    )


def _ended(text: str) -> Literal["passed", "failed", ""]:
    statuses = [match["status"] for match in _BANNER.finditer(text)]
    if "FAILED" in statuses:
        return "failed"
    return "passed" if "PASSED" in statuses else ""


def _speed(texts: Sequence[str]) -> Speed | None:
    """The performance summary, if it is complete."""
    rows = {_ROWS[result["row"]]: _spread(result) for result in map(_ROW.match, texts) if result}
    throughput, wall, computed = (_number(texts, pattern) for pattern in (_THROUGHPUT, _WALL, _COMPUTED))
    if throughput is None or wall is None or computed is None or set(rows) != set(_ROWS.values()):
        return None
    return Speed(queries_per_second=throughput, wall_seconds=wall, compute_seconds=computed, **rows)


def _spread(row: re.Match[str]) -> Spread:
    return Spread(
        minimum=float(row["min"]),
        maximum=float(row["max"]),
        mean=float(row["mean"]),
        median=float(row["median"]),
        percentiles={match["of"]: float(match["value"]) for match in _PERCENTILE.finditer(row["percentiles"])},
    )


def _last(texts: Iterable[str], pattern: re.Pattern[str]) -> str:
    """The match in the last line of a pattern; empty where there is none."""
    return next((match[1] for match in map(pattern.search, reversed(list(texts))) if match), "")


def _number(texts: Iterable[str], pattern: re.Pattern[str]) -> float | None:
    try:
        value = float(_last(texts, pattern))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _count(texts: Iterable[str], pattern: re.Pattern[str]) -> int | None:
    value = _last(texts, pattern)
    return int(value) if value else None


def _most(texts: Iterable[str], pattern: re.Pattern[str]) -> int | None:
    """The largest number over all matching lines: the library logs one per build, and trtexec may build twice."""
    return max((int(match[1]) for match in map(pattern.search, texts) if match), default=None)


def _now(texts: Iterable[str]) -> tuple[int, int] | None:
    match = next((match for match in map(_NOW.search, reversed(list(texts))) if match), None)
    return (int(match[1]), int(match[2])) if match else None


def find_trtexec(folders: Sequence[Path] = TRTEXEC_FOLDERS) -> str | None:
    """Find trtexec, on PATH or where NVIDIA's packages and containers install it; None if there is none."""
    return shutil.which("trtexec") or shutil.which("trtexec", path=os.pathsep.join(map(str, folders)))


def version(program: str) -> str:
    """Return the three version numbers of a trtexec's TensorRT.

    It is run without arguments: it then prints a banner and its help, and touches no GPU.

    Raises:
        EnvironmentFault: it does not start, does not end, or is another program.
    """
    try:
        done = subprocess.run(
            [program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_SECONDS_TO_ANSWER,
            check=False,
        )
    except OSError as error:
        raise EnvironmentFault(
            f"{program} cannot be run: {error.strerror}",
            remedy="set tensorrt: trtexec to the program, or use --builder api",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFault(
            f"{program} did not say its version within {_SECONDS_TO_ANSWER} s",
            remedy="run it by hand, without arguments; if it hangs, look at the GPU's driver with nvidia-smi",
        ) from error
    output = done.stdout.decode(errors="replace")
    number = banner_version(output)
    if not number:
        lines = output.strip().splitlines()
        raise EnvironmentFault(
            f"{program} does not say which TensorRT it belongs to: {lines[-1] if lines else 'it prints nothing'}",
            remedy="put the folder of TensorRT's libraries into LD_LIBRARY_PATH, and run it without arguments to see",
        )
    return ".".join(number.split(".")[:3])
