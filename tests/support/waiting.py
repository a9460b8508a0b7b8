"""Waiting for what another program does in its own time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

SECONDS = 120


def soon(read: Callable[[], T], expected: T) -> T:
    """What is read once it is what is expected, or what it is two minutes later.

    Triton answers before it counts: what its statistics and metrics say of a request comes a moment after the answer.
    """
    deadline = time.monotonic() + SECONDS
    while (found := read()) != expected and time.monotonic() < deadline:
        time.sleep(0.01)
    return found
