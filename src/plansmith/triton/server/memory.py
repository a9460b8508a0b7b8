"""What a server and the Python stubs that it started hold in memory, and the end of those that hold too much."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from plansmith.errors import EnvironmentFault
from plansmith.system.process import members_of, signal_group

_POLL_SECONDS = 0.5
_PROC = Path("/proc")
_MEMORY = "smaps_rollup"


def is_measurable(proc: Path = _PROC) -> bool:
    """Whether the kernel says what a process holds: some sandboxes and kernels do not.

    Args:
        proc: where processes are described.
    """
    return _why_unmeasurable(proc / "self") is None


def group_bytes(group: int, proc: Path = _PROC) -> int:
    """What the processes of a group hold in memory, with what they share counted once.

    It is the sum of their proportional set sizes (Linux, Documentation/filesystems/proc.rst, smaps_rollup); a process
    that ends meanwhile counts as nothing.

    Args:
        group: the number of its first process.
        proc: where processes are described.
    """
    held = 0
    for number in members_of(group, proc):
        with suppress(OSError, ValueError, IndexError):
            rows = (proc / str(number) / _MEMORY).read_text().splitlines()
            held += sum(int(row.split()[1]) * 1024 for row in rows if row.startswith("Pss:"))
    return held


class MemoryLimit:
    """While its block lasts, a process group that holds more than it may is killed.

    Args:
        group: the number of its first process.
        most: in bytes.
        proc: where processes are described.

    Attributes:
        exceeded: what it held when it was killed for it; None while it was not.

    Raises:
        EnvironmentFault: the block is not entered, as nothing says what the process holds, and the limit would never
            act.
    """

    def __init__(self, group: int, most: int, proc: Path = _PROC) -> None:
        self.exceeded: int | None = None
        self._group, self._most, self._proc = group, most, proc
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        why = _why_unmeasurable(self._proc / str(self._group))
        if why is not None:
            raise EnvironmentFault(
                f"nothing says what Triton holds in memory, so that no limit can be kept: {why}",
                remedy="leave out --memory, or limit the container that it runs in (docker run --memory)",
            )
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(_POLL_SECONDS):
            held = group_bytes(self._group, self._proc)
            if held > self._most:
                self.exceeded = held
                signal_group(self._group, signal.SIGKILL)
                return


def _why_unmeasurable(process: Path) -> str | None:
    """Why the memory of a process cannot be read; None where it can, or where the process has ended."""
    file = process / _MEMORY
    try:
        file.read_text()
    except ProcessLookupError:
        return None
    except OSError as error:
        return f"{file}: {error.strerror}" if process.exists() else None
    return None
