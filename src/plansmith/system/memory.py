"""Out-of-memory detection: the kernel's counters, and the error messages of libraries."""

from __future__ import annotations

import gc
import os
import resource
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

REMEDY = "make the largest shape smaller (--shapes), or use a machine with more memory"

# How the allocators of C++, PyTorch, ONNX Runtime and NumPy say that they got nothing.
_SIGNS = (
    "std::bad_alloc",
    "can't allocate memory",
    "not enough memory",
    "Failed to allocate memory",
    "Unable to allocate",
    "Cannot allocate memory",
    "MemoryError",
)

_TUNABLES = "GLIBC_TUNABLES"
_MAPPED_BYTES, _KEPT_BYTES = 64 << 20, 128 << 20

_NO_LIMIT = 2**60  # cgroup v1 says "unlimited" with a number close to 2**63
_MEMINFO = Path("/proc/meminfo")


def tells_of_memory(text: str) -> str | None:
    """Return the first line of a text that reports an out-of-memory error; None if there is none."""
    return next((line.strip() for line in text.splitlines() if any(sign in line for sign in _SIGNS)), None)


def reused_memory() -> dict[str, str]:
    """Return the variable by which a program keeps up to 128 MiB of what it frees, and uses it again.

    A compile copies its weights a dozen times. With glibc's defaults each copy is new memory, and the kernel clears
    every page of it when it is first touched: a seventh of the CPU time of a small model. What has 64 MiB or more, such
    as a whole graph as bytes, goes back at once: kept, it would count beside what is needed next. The settings are in
    glibc's manual, "Memory Allocation Tunables"; a user's own ones stand behind these, and win.
    """
    ours = (f"glibc.malloc.mmap_threshold={_MAPPED_BYTES}", f"glibc.malloc.trim_threshold={_KEPT_BYTES}")
    return {_TUNABLES: ":".join([*ours, *filter(None, [os.environ.get(_TUNABLES)])])}


def give_back() -> None:
    """Give memory that is free back to the system, where the C library can.

    What earlier work has left would count beside what is needed next, and cannot be used for what is larger than it.
    """
    import ctypes

    gc.collect()
    with suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def control_groups(membership: Path) -> list[tuple[tuple[str, ...], str]]:
    """Return the control groups of a process; none if the kernel lists none.

    Args:
        membership: the process's file `cgroup` (Linux, Documentation/admin-guide/cgroup-v2.rst, "Processes").

    Returns:
        The controllers of each, of which version 2 names none, and its path below where they are mounted.
    """
    try:
        rows = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError:
        return []
    return [(tuple(filter(None, controllers.split(","))), group.strip("/")) for _, controllers, group in rows]


def kills_counter(process: int, proc: Path = Path("/proc"), mounts: Path = Path("/sys/fs/cgroup")) -> Path | None:
    """Return the file with the kernel's out-of-memory kill count of a process's control group.

    It is `memory.events` of version 2 or `memory.oom_control` of version 1, both with a line "oom_kill N"
    (Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst).

    Args:
        process: its number.
        proc: where processes are described.
        mounts: where control groups are.
    """
    for controllers, inside in control_groups(proc / str(process) / "cgroup"):
        places = []
        if "memory" in controllers:
            places = [mounts / "memory" / inside / "memory.oom_control"]
        elif not controllers:
            places = [mounts / inside / "memory.events", mounts / "unified" / inside / "memory.events"]
        for place in places:
            if kills(place) is not None:
                return place
    return None


def kills(counter: Path | None) -> int | None:
    """Return the number of out-of-memory kills in a file of `kills_counter`; None if not available."""
    try:
        lines = counter.read_text().splitlines() if counter is not None else []
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


class Watch:
    """Out-of-memory watch: compares the kernel's kill counts of a process before and after it was killed.

    Args:
        process: its number.
    """

    def __init__(self, process: int) -> None:
        self._counter = kills_counter(process)
        self._before = kills(self._counter)

    def verdict(self) -> tuple[str, str]:
        """Return what killed the process, as far as the kernel's count shows, and the remedy."""
        after = kills(self._counter)
        if self._before is None or after is None:
            return "most likely because the machine ran out of memory", REMEDY
        if after > self._before:
            return "by the kernel, because the machine or its control group ran out of memory", REMEDY
        return (
            "not by the kernel but by another program, such as a watch on memory, a job's limit or kill -9",
            f"run the same command again; if memory is short, {REMEDY}",
        )


def wait_for(process: int) -> tuple[int, int]:
    """Wait for a child process; return its exit code (or minus the signal) and peak memory in bytes."""
    _, status, usage = os.wait4(process, 0)
    return os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024


def peak_bytes(proc: Path = Path("/proc/self/status")) -> int:
    """Return the peak memory of this process or, if higher, of a child program that has ended.

    The kernel's VmHWM begins anew with each program; ru_maxrss, which children have alone, counts in what the process
    that started them held then (Linux, getrusage(2)).
    """
    fields = dict(line.split(":", 1) for line in proc.read_text().splitlines() if ":" in line)
    own = int(fields["VmHWM"].split()[0]) if "VmHWM" in fields else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return (own + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) * 1024


@dataclass(frozen=True)
class Limits:
    """Resource limits by control groups; None if unlimited.

    Args:
        memory_bytes: of all processes in the group together.
        processors: may be a fraction.
    """

    memory_bytes: int | None
    processors: float | None


def available_memory(meminfo: str) -> int:
    """Return the available memory in bytes, from the text of /proc/meminfo."""
    fields = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)
    return int(fields["MemAvailable"].split()[0]) * 1024


def control_group_limits(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> Limits:
    """Return the tightest limits of this process's control groups and their parents, version 1 or 2.

    Args:
        root: where control groups are mounted.
        membership: the file that names those of this process.
    """
    memory: list[int] = []
    processors: list[float] = []
    for controllers, group in control_groups(membership):
        for top in [root / name for name in dict.fromkeys([",".join(controllers), *controllers])]:
            for folder in (current := top / group, *current.parents):
                if not folder.is_relative_to(root):
                    break
                memory += _memory_limit(folder)
                processors += _processor_limit(folder)
    return Limits(min(memory, default=None), min(processors, default=None))


def usable_memory(
    meminfo: Path = _MEMINFO,
    root: Path = Path("/sys/fs/cgroup"),
    membership: Path = Path("/proc/self/cgroup"),
) -> int:
    """Return the memory available to this process in bytes: free memory, limited by its control groups."""
    free = available_memory(meminfo.read_text())
    granted = control_group_limits(root, membership).memory_bytes
    return free if granted is None else min(free, granted)


def _memory_limit(folder: Path) -> list[int]:
    contents = (_read_words(folder / name) for name in ("memory.max", "memory.limit_in_bytes"))
    return [int(tokens[0]) for tokens in contents if tokens and tokens[0].isdigit() and int(tokens[0]) < _NO_LIMIT]


def _processor_limit(folder: Path) -> list[float]:
    first = _read_words(folder / "cpu.max")
    tokens = first or [*_read_words(folder / "cpu.cfs_quota_us"), *_read_words(folder / "cpu.cfs_period_us")]
    return [int(tokens[0]) / int(tokens[1])] if len(tokens) == 2 and tokens[0].isdigit() else []


def _read_words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []
