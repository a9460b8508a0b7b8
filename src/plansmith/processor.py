"""What this machine's processor can do that lowered graphs depend on."""

from __future__ import annotations

from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
_VNNI = {"avx512_vnni", "avx_vnni"}


def sums_bytes_exactly(described: str | None = None) -> bool:
    """Whether sums of products of bytes are exact: on x86 with VNNI, and on all other processors.

    x86 without VNNI adds pairs of products in 16 bits, which saturates.

    Args:
        described: the text of /proc/cpuinfo; read when None.
    """
    if described is None:
        described = CPU_INFO.read_text(encoding="utf-8", errors="replace") if CPU_INFO.exists() else ""
    flags = next((line.split() for line in described.splitlines() if line.startswith("flags")), [])
    return not flags or not _VNNI.isdisjoint(flags)
