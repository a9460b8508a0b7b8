"""What the kernel grants to tests: control groups with little memory, in which it ends who takes more; namespaces."""

from __future__ import annotations

import os
import subprocess
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


def namespaces_allowed() -> bool:
    """Whether this user may make namespaces here, as unshare(1) finds it."""
    command = ["unshare", "--user", "--map-root-user", "--net", "--mount", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
