"""Control groups with little memory, in which the kernel ends whoever takes more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from plansmith.system.memory import kills_counter

_LIMITS = {"memory.oom_control": "memory.limit_in_bytes", "memory.events": "memory.max"}


@contextmanager
def small_group(limit: int) -> Iterator[Path | None]:
    """Make a group below this process's with a limit in bytes; None where this process may not."""
    counter = kills_counter(os.getpid())
    group = counter.parent / f"plansmith-test-{os.getpid()}" if counter is not None else None
    try:
        if group is None or counter is None:
            yield None
            return
        try:
            group.mkdir()
            (group / _LIMITS[counter.name]).write_text(str(limit))
        except OSError:
            yield None
            return
        yield group
    finally:
        if group is not None:
            with suppress(OSError):
                group.rmdir()
