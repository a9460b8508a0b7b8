"""Groups of processes: those that a program started end with it, whether they want to or not."""

from __future__ import annotations

import os
import time

_POLL_SECONDS = 0.01


def signal_group(group: int, number: int) -> bool:
    """Send all processes of a group a signal, or ask with 0; whether there are any."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def wait_for_group(group: int, seconds: float) -> None:
    """Wait for the end of all processes of a group, but no longer."""
    deadline = time.monotonic() + seconds
    while signal_group(group, 0) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
