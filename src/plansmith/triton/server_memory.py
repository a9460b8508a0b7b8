"""What a server and the Python stubs that it started hold in memory, and the end of those that hold too much."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from plansmith.process_groups import signal_group

_POLL_SECONDS = 0.5


def group_bytes(group: int, proc: Path = Path("/proc")) -> int:
    """What the processes of a group hold in memory, with what they share counted once.

    It is the sum of their proportional set sizes (Linux, Documentation/filesystems/proc.rst, smaps_rollup); a process
    that ends meanwhile counts as nothing.

    Args:
        group: the number of its first process.
        proc: where processes are described.
    """
    held = 0
    for folder in proc.iterdir():
        if folder.name.isdecimal() and _group_of(folder) == group:
            with suppress(OSError, ValueError, IndexError):
                rows = (folder / "smaps_rollup").read_text().splitlines()
                held += sum(int(row.split()[1]) * 1024 for row in rows if row.startswith("Pss:"))
    return held


class MemoryLimit:
    """While its block lasts, a process group that holds more than it may is killed.

    Args:
        group: the number of its first process.
        most: in bytes.

    Attributes:
        exceeded: what it held when it was killed for it; None while it was not.
    """

    def __init__(self, group: int, most: int) -> None:
        self.exceeded: int | None = None
        self._group, self._most = group, most
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(_POLL_SECONDS):
            held = group_bytes(self._group)
            if held > self._most:
                self.exceeded = held
                signal_group(self._group, signal.SIGKILL)
                return


def _group_of(process: Path) -> int | None:
    """The group of a process (Linux proc(5), stat: the third field after the name, which may hold anything)."""
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[2])
    except (OSError, ValueError, IndexError):
        return None
