"""Waiting for what another program does in its own time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

SECONDS = 120
LONGEST_SECONDS = 240
"""For what takes seconds on a machine that has nothing else to do."""


def soon(read: Callable[[], T], expected: T, seconds: float = SECONDS) -> T:
    """What is read once it is what is expected, or what it is some time later.

    Triton answers before it counts: what its statistics and metrics say of a request comes a moment after the answer.
    """
    deadline = time.monotonic() + seconds
    while (value := read()) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    return value


def wait_until(
    happened: Callable[[], bool], told: Callable[[], str] = lambda: "", seconds: float = LONGEST_SECONDS
) -> None:
    """Wait for something that takes its time; what is told where it does not happen."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, told() or "it did not happen"
        time.sleep(0.2)
