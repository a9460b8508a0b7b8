"""The bytes of a plan, made by hand."""

from __future__ import annotations

from plansmith.compilers.trt.plan_header import HEADER_BYTES


def plan(version: str = "10.16.1.11", *, magic: bytes = b"ftrt", serialization: int = 0) -> bytes:
    """The bytes of a plan, made by hand: NVIDIA's layout, with noise where nothing is known of it."""
    header = bytearray(b"\xa5" * HEADER_BYTES)
    header[0:4] = magic
    header[4:8] = serialization.to_bytes(4, "little")
    header[24:28] = bytes(map(int, version.split(".")))
    return bytes(header) + b"weights and kernels"
