"""What the kernel and the control groups leave a process of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plansmith.memory import control_groups

_NO_LIMIT = 2**60  # cgroup v1 says "unlimited" with a number close to 2**63
_MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True)
class Limits:
    """What the control groups of this process leave it; None where they set no limit.

    Args:
        memory_bytes: of all processes in the group together.
        processors: may be a fraction.
    """

    memory_bytes: int | None
    processors: float | None


def available_memory(meminfo: str) -> int:
    """Bytes that programs can still take, from the text of /proc/meminfo."""
    fields = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)
    return int(fields["MemAvailable"].split()[0]) * 1024


def control_group_limits(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> Limits:
    """The tightest limits of this process's control groups and of those above them, version 1 or 2.

    Args:
        root: where control groups are mounted.
        membership: the file that names those of this process.
    """
    memory: list[int] = []
    processors: list[float] = []
    for controllers, group in control_groups(membership):
        for top in [root / name for name in dict.fromkeys([",".join(controllers), *controllers])]:
            for folder in (here := top / group, *here.parents):
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
    """Bytes that this process can still take: what is free, and no more than its control groups grant in all."""
    free = available_memory(meminfo.read_text())
    granted = control_group_limits(root, membership).memory_bytes
    return free if granted is None else min(free, granted)


def _memory_limit(folder: Path) -> list[int]:
    found = (_words(folder / name) for name in ("memory.max", "memory.limit_in_bytes"))
    return [int(words[0]) for words in found if words and words[0].isdigit() and int(words[0]) < _NO_LIMIT]


def _processor_limit(folder: Path) -> list[float]:
    first = _words(folder / "cpu.max")
    words = first or [*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us")]
    return [int(words[0]) / int(words[1])] if len(words) == 2 and words[0].isdigit() else []


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []
