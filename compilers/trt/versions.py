"""Versions of TensorRT as dotted texts: which ones plansmith builds with, and whose plans load in which."""

from __future__ import annotations

import re

FIRST, LAST_10, NEWEST_MAJOR = (10, 12), (10, 16), 11
SUPPORTED = "10.12 to 10.16 and 11"

_NUMBERS = re.compile(r"\d+(\.\d+)*")


def numbers_of(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with; none of an empty one."""
    found = _NUMBERS.match(version)
    return tuple(map(int, found[0].split("."))) if found else ()


def dotted(numbers: tuple[int, ...]) -> str:
    """Numbers as a version."""
    return ".".join(map(str, numbers))


def is_supported(version: str) -> bool:
    """Whether plansmith builds plans with a TensorRT: it can be asked for strongly typed networks, or has no others."""
    numbers = numbers_of(version)
    return numbers[:1] == (NEWEST_MAJOR,) or FIRST <= numbers[:2] <= LAST_10


def is_same(version: str, wanted: str) -> bool:
    """Whether two versions agree in all numbers that both tell; an unknown one agrees with none."""
    known = min(len(numbers_of(version)), len(numbers_of(wanted)))
    return known >= 2 and numbers_of(version)[:known] == numbers_of(wanted)[:known]


def loads_in(built: str, wanted: str) -> bool:
    """Whether a version-compatible plan of one TensorRT loads in another: the same or a newer one of 10 and 11.

    Source: https://docs.nvidia.com/deeplearning/tensorrt/11.1.0/inference-library/engine-compatibility.html.
    """
    mine, theirs = numbers_of(built), numbers_of(wanted)
    known = min(len(mine), len(theirs))
    return (mine[:1], theirs[:1]) in {((10,), (10,)), ((10,), (11,)), ((11,), (11,))} and mine[:known] <= theirs[:known]
