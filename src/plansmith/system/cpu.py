"""What this machine's processor can do that lowered graphs depend on."""

from __future__ import annotations

import platform
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
_VNNI = {"avx512_vnni", "avx_vnni"}
_X86 = {"x86_64", "amd64", "i386", "i486", "i586", "i686", "x86"}


def sums_bytes_exactly(described: str | None = None, machine: str | None = None) -> bool:
    """Whether sums of products of bytes are exact: on x86 that says it has VNNI, and on all other processors.

    x86 without VNNI adds pairs of products in 16 bits, which saturates. One that does not say what it has, as outside
    of Linux, is not taken to have it.

    Args:
        described: the text of /proc/cpuinfo; read when None.
        machine: the kind of processor; that of this machine when None.
    """
    if described is None:
        described = CPU_INFO.read_text(encoding="utf-8", errors="replace") if CPU_INFO.exists() else ""
    flags = next((line.split() for line in described.splitlines() if line.startswith("flags")), [])
    is_x86 = (platform.machine() if machine is None else machine).lower() in _X86
    return not _VNNI.isdisjoint(flags) if flags or is_x86 else True
