"""Whether processes that are not our children have ended."""

from __future__ import annotations

import time
from collections.abc import Iterable

import psutil

LONGEST_SECONDS = 60


def still_running(processes: Iterable[psutil.Process]) -> list[str]:
    """Wait for processes to end; those that do not. One that nobody has reaped yet has ended."""
    deadline = time.monotonic() + LONGEST_SECONDS
    waiting = [process for process in processes if _is_running(process)]
    while waiting and time.monotonic() < deadline:
        time.sleep(0.01)
        waiting = [process for process in waiting if _is_running(process)]
    return [str(process) for process in waiting]


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
