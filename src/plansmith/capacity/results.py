"""Plan, memory meters and results of a capacity measurement. Sizes are in bytes, latencies in milliseconds."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import Field

from plansmith.errors import EnvironmentFault, PlansmithError, ServedCheckError, UsageError
from plansmith.formatting import format_bytes
from plansmith.records.engine import Gpu
from plansmith.records.model import Device, Record
from plansmith.system.gpus import used_memory
from plansmith.system.memory import control_group_limits, usable_memory
from plansmith.triton.server.process import group_bytes, is_measurable

DEFAULT_SHARE = 0.9
DEFAULT_TIMEOUT_SECONDS = 600.0

Ending = Literal["share", "max-copies", "disk", "load-failed", "answer-failed", "server-lost", "interrupted"]
"""Why no further copy was loaded: the share of memory is used, the number is reached, the disk is full, a copy does not
load or does not answer, the server ended or cannot be asked, or somebody interrupted."""

HOST = "host"


@dataclass(frozen=True)
class CapacityPlan:
    """Plan of a capacity measurement.

    Attributes:
        share: of the memory that may be used, above 0 and up to 1.
        max_copies: load no more than these; None for as many as fit.
        memory_bytes: of host memory that the server and its copies may use; None for all of the machine.
        timeout_seconds: how long each load, unload and answer may take.
        invocations: random ones over more models than fit; 0 for none.
        models: over which they go; None for twice as many as fit.
        seed: of their order.

    Raises:
        UsageError: a value out of its range.
    """

    share: float = DEFAULT_SHARE
    max_copies: int | None = None
    memory_bytes: int | None = None
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    invocations: int = 0
    models: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise UsageError(f"--share {self.share:g} is no share", remedy="give one above 0 and up to 1: --share 0.9")
        if self.max_copies is not None and self.max_copies < 1:
            raise UsageError(f"--max-copies {self.max_copies} loads nothing", remedy="give 1 or more, or leave it out")
        if self.invocations < 0 or (self.models is not None and self.models < 1):
            raise UsageError("--invocations and --models cannot be negative", remedy="give 1 or more")
        if self.models is not None and not self.invocations:
            raise UsageError("--models goes with --invocations", remedy="say how many: --invocations 200")
        if self.timeout_seconds <= 0:
            raise UsageError(
                f"--timeout {self.timeout_seconds:g} is no time", remedy="give seconds above 0: --timeout 600"
            )


class Spread(Record):
    """Median, minimum and maximum of values; zeros for none."""

    count: int = 0
    median: float = 0
    min: float = 0
    max: float = 0


class MemoryPool(Record):
    """Memory pool that copies use.

    Attributes:
        name: "host", or a GPU such as "gpu 0".
        total_bytes: all of it, or what was stated with `--memory`.
        used_bytes: of it now.
        server_bytes: that the server holds; None where that is unknown.
        is_stated: whether its size was stated.
    """

    name: str
    total_bytes: int
    used_bytes: int
    server_bytes: int | None = None
    is_stated: bool = False

    def free_bytes(self, share: float) -> int:
        """Return the bytes still available within a share of the pool."""
        return int(share * self.total_bytes) - self.used_bytes


class LoadedCopy(Record):
    """Loaded copy that has answered.

    Attributes:
        number: from 1.
        release: of which it is a copy, MODEL@VERSION.
        name: on the server.
        load_seconds: until it was loaded.
        first_ms: until its first answer.
        memory_bytes: by which each memory grew with it, by the name of the memory.
    """

    number: int
    release: str
    name: str
    load_seconds: float
    first_ms: float
    memory_bytes: dict[str, int]


class Eviction(Record):
    """Eviction results: random invocations of more models than fit, each load unloading the least recently used.

    Attributes:
        models: that were invoked.
        slots: that were loaded at a time at most.
        popularity: of the models, such as zipf:1.
        seed: of their order.
        hits: invocations of a model that was loaded.
        misses: of one that was not.
        evictions: unloads for another model.
        hit_ms: until the answer.
        miss_ms: likewise, with the unloads and the load.
        errors: invocations without an answer.
        first_error: the first of them.
    """

    models: int
    slots: int
    popularity: str
    seed: int
    hits: int
    misses: int
    evictions: int
    hit_ms: Spread = Spread()
    miss_ms: Spread = Spread()
    errors: int = 0
    first_error: str = ""


class CapacityReport(Record):
    """Results of a capacity measurement.

    Attributes:
        releases: that were copied in turn, as MODEL@VERSION.
        server: in words.
        device: on which the copies run.
        share: of the memory that may be used.
        file_bytes: of one copy of each release.
        memory_before: with no copy loaded.
        memory_full: with all copies loaded.
        memory_after: when all were unloaded; empty where that was not seen.
        copies: in the order in which they were loaded.
        ending: why there is no further one.
        reason: the same in words.
        answers_ms: of all copies, once all were loaded.
        failed_answers: copies that did not answer then, and why.
        unload_seconds: of each copy.
        eviction: random invocations; None where there were none.
        still_loaded: copies that a running server did not unload.
        seconds: duration of everything.
        notes: what a reader has to know to read the figures correctly.
    """

    releases: tuple[str, ...]
    server: str
    device: Device
    share: float
    file_bytes: tuple[int, ...]
    memory_before: tuple[MemoryPool, ...] = ()
    memory_full: tuple[MemoryPool, ...] = ()
    memory_after: tuple[MemoryPool, ...] = ()
    copies: tuple[LoadedCopy, ...] = ()
    ending: Ending = "interrupted"
    reason: str = ""
    answers_ms: Spread = Spread()
    failed_answers: dict[str, str] = Field(default_factory=dict)
    unload_seconds: Spread = Spread()
    eviction: Eviction | None = None
    still_loaded: tuple[str, ...] = ()
    seconds: float = 0
    notes: tuple[str, ...] = ()

    @property
    def load_seconds(self) -> Spread:
        """Load times of all copies."""
        return spread_of([copy.load_seconds for copy in self.copies])

    def bytes_per_copy(self, pool: str) -> int | None:
        """Return the memory growth per copy: the median without the first copy, which also loads its backend."""
        growth = [copy.memory_bytes[pool] for copy in self.copies if pool in copy.memory_bytes]
        return round(statistics.median(growth[1:] or growth)) if growth else None

    def estimated_copies(self) -> int | None:
        """Return how many copies would fit by memory per copy, if something else ended the loading; None if unknown."""
        if self.ending == "share":
            return None
        more = []
        for pool in self.memory_full:
            per_copy = self.bytes_per_copy(pool.name)
            if per_copy is not None and per_copy > 0:
                more.append(max(0, pool.free_bytes(self.share)) // per_copy)
        return len(self.copies) + min(more) if more and len(self.copies) > 1 else None

    def failure(self) -> PlansmithError | None:
        """Return the failure of the release or server, other than memory being full; None without one."""
        if self.still_loaded:
            return ServedCheckError(
                f"{self.server} did not unload {', '.join(self.still_loaded)}",
                remedy="unload them: POST v2/repository/models/NAME/unload",
            )
        if self.ending == "answer-failed":
            return ServedCheckError(self.reason, remedy="see that the release passes its gate: plansmith verify")
        if not self.copies and self.ending in {"load-failed", "server-lost"}:
            return ServedCheckError(f"not one copy loads: {self.reason}", remedy="read the log")
        return None


def spread_of(values: Sequence[float]) -> Spread:
    """Return median, minimum and maximum."""
    if not values:
        return Spread()
    return Spread(count=len(values), median=round(statistics.median(values), 3), min=min(values), max=max(values))


class Meter(Protocol):
    """Memory meter."""

    def read(self) -> tuple[MemoryPool, ...]:
        """Read the current state of each memory pool that copies use.

        Raises:
            EnvironmentFault: nothing tells.
        """
        ...


class ProcessMeter:
    """Memory meter of a server on this machine.

    Args:
        group: its process group.
        gpus: on which its models run.
        memory_bytes: as stated; None for all of the machine.
        gpu_bytes: of each GPU in use before the server started.
    """

    def __init__(self, group: int, gpus: Sequence[Gpu], memory_bytes: int | None, gpu_bytes: Sequence[int]) -> None:
        self._group = group
        self._gpus = tuple(gpus)
        self._stated = memory_bytes
        self._gpu_before = tuple(gpu_bytes)

    def read(self) -> tuple[MemoryPool, ...]:
        """See `Meter`."""
        return (host_pool(self._stated, group_bytes(self._group)), *self._gpu_pools())

    def _gpu_pools(self) -> list[MemoryPool]:
        return [
            MemoryPool(
                name=f"gpu {number}",
                total_bytes=gpu.memory_bytes or used,
                used_bytes=used,
                server_bytes=used - before,
            )
            for number, (gpu, used, before) in enumerate(
                zip(self._gpus, used_memory(self._gpus), self._gpu_before, strict=True)
            )
        ]


def host_pool(stated: int | None, server_bytes: int) -> MemoryPool:
    """Return host memory: a stated limit, of which only the server's own usage counts, or the machine's memory.

    Where a control group limits the machine's, what is used is at least what the server holds.
    """
    if stated is not None:
        return MemoryPool(
            name=HOST, total_bytes=stated, used_bytes=server_bytes, server_bytes=server_bytes, is_stated=True
        )
    total = _total_memory()
    used = max(total - usable_memory(), server_bytes)
    return MemoryPool(name=HOST, total_bytes=total, used_bytes=used, server_bytes=server_bytes)


def memory_limit(stated: int | None) -> int:
    """Return the memory limit in bytes above which a started server is killed, so that the machine stays usable.

    Raises:
        EnvironmentFault: the kernel does not say what processes hold.
        UsageError: more is stated than there is.
    """
    if not is_measurable():
        raise EnvironmentFault(
            "the kernel does not say here what the processes of a server hold in memory",
            remedy="measure where /proc/PID/smaps_rollup can be read",
        )
    usable = usable_memory()
    if stated is not None and stated > usable:
        raise UsageError(
            f"--memory {format_bytes(stated)} is more than the {format_bytes(usable)} that are free here",
            remedy="state less, or leave it out",
        )
    return usable if stated is None else stated


def _total_memory() -> int:
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = control_group_limits().memory_bytes
    return machine if limit is None else min(machine, limit)
