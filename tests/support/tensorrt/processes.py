"""Whether a process lives."""

from __future__ import annotations

import time
from pathlib import Path


def is_gone(process: int) -> bool:
    """Whether a process ends within a minute: a kill takes its time."""
    deadline = time.monotonic() + 60
    while is_there(process) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_there(process)


def is_there(process: int) -> bool:
    """Whether a process lives: a dead one that nobody has waited for does not."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
