"""Meters of the memory that a server's copies use: host memory of its processes by the kernel, GPUs by their driver."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

from plansmith.capacity.results import MemoryPool
from plansmith.errors import EnvironmentFault, UsageError
from plansmith.formatting import format_bytes
from plansmith.records.engine import Gpu
from plansmith.system.gpus import used_memory
from plansmith.system.memory import control_group_limits, usable_memory
from plansmith.triton.server.memory import group_bytes, is_measurable

HOST = "host"


class Meter(Protocol):
    """Reads memory."""

    def read(self) -> tuple[MemoryPool, ...]:
        """Each memory that copies use, as it is now.

        Raises:
            EnvironmentFault: nothing tells.
        """
        ...


class ProcessMeter:
    """The memory of a server of this machine.

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
    """Host memory: what was stated, of which only the server's own counts as used; or the machine's.

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
    """What a server that is started may hold before it is ended, in bytes: the machine stays usable.

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
