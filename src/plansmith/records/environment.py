"""The record of an environment that a model of Triton's Python backend brings with it."""

from __future__ import annotations

from plansmith.records.model import Record


class PackedDistribution(Record):
    """One distribution in an environment; `sha256` is that of its wheel."""

    name: str
    version: str
    wheel: str
    sha256: str


class PackedEnvironment(Record):
    """An archive that Triton unpacks before it starts a Python model.

    `file`: its name; `python`: the Python that it is for, such as "3.12"; `machine` and `glibc`: likewise, such as
    "x86_64" and "2.34", the newest that a wheel in it may need; `bytes` and `unpacked_bytes`: what it takes;
    `distributions`: all that is in it.
    """

    file: str
    python: str
    machine: str
    glibc: str
    bytes: int
    unpacked_bytes: int
    distributions: tuple[PackedDistribution, ...]
