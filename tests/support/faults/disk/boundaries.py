"""The calls that change the disk: recorded, and one of them made the last thing that a process does."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

# Name, and which argument is the path that changes.
CALLS = {"fsync": 0, "link": 1, "mkdir": 0, "rename": 1, "replace": 1, "rmdir": 0, "symlink": 1, "unlink": 0}

When = Literal["before", "after"]


@dataclass
class Boundaries:
    """Counts the calls of this process that change the disk, and kills it at one of them.

    Args:
        trace: the calls are written here, a line each: name and path.
        number: the call at which the process dies, from 1; 0 for none.
        when: whether it dies before or after that call.
        pattern: only calls that change such a path count.
    """

    trace: Path
    number: int = 0
    when: When = "before"
    pattern: str = ""
    _count: int = 0

    def arm(self) -> None:
        """Wrap the calls, for the rest of this process's life."""
        self.trace.write_text("")
        for name in CALLS:
            setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            path = _path_of(arguments[CALLS[name]], options.get("dir_fd"))
            if self.pattern and not path.match(self.pattern):
                return real(*arguments, **options)
            self._count += 1
            with self.trace.open("a") as stream:
                stream.write(f"{name} {path}\n")
            self._die("before")
            try:
                return real(*arguments, **options)
            finally:
                self._die("after")

        return call

    def _die(self, when: When) -> None:
        if self._count == self.number and self.when == when:
            os.kill(os.getpid(), signal.SIGKILL)


def _path_of(argument: Any, folder: int | None) -> Path:
    """The path that a call means, given as a path, as a descriptor, or relative to a folder's descriptor."""
    if isinstance(argument, int):
        return Path(f"/proc/self/fd/{argument}").readlink()
    return Path(f"/proc/self/fd/{folder}").readlink() / argument if folder is not None else Path(argument)
