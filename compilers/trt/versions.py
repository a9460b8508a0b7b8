"""TensorRT versions as dotted strings: which ones plansmith supports, and whose plans load in which."""

from __future__ import annotations

import re

FIRST, LAST_10, NEWEST_MAJOR = (10, 12), (10, 16), 11
SUPPORTED = "10.12 to 10.16 and 11"

_NUMBERS = re.compile(r"\d+(\.\d+)*")


def numbers_of(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version; none for an empty one."""
    result = _NUMBERS.match(version)
    return tuple(map(int, result[0].split("."))) if result else ()


def dotted(numbers: tuple[int, ...]) -> str:
    """Format numbers as a version."""
    return ".".join(map(str, numbers))


def is_supported(version: str) -> bool:
    """Whether plansmith supports a TensorRT version: strongly typed networks are available or the only kind."""
    numbers = numbers_of(version)
    return numbers[:1] == (NEWEST_MAJOR,) or FIRST <= numbers[:2] <= LAST_10


def is_same(version: str, target_version: str) -> bool:
    """Whether two versions agree in all numbers that both have; an unknown one agrees with none."""
    length = min(len(numbers_of(version)), len(numbers_of(target_version)))
    return length >= 2 and numbers_of(version)[:length] == numbers_of(target_version)[:length]


def loads_in(built: str, target_version: str) -> bool:
    """Whether a version-compatible plan of one TensorRT loads in another: the same or a newer one of 10 and 11.

    Source: https://docs.nvidia.com/deeplearning/tensorrt/11.1.0/inference-library/engine-compatibility.html.
    """
    mine, theirs = numbers_of(built), numbers_of(target_version)
    length = min(len(mine), len(theirs))
    return (mine[:1], theirs[:1]) in {((10,), (10,)), ((10,), (11,)), ((11,), (11,))} and mine[:length] <= theirs[
        :length
    ]
