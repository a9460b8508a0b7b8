"""The process of a Triton server and of the Python stubs that it starts: begun, tied to this one, ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import IO, TYPE_CHECKING

from plansmith.process import dying_with

if TYPE_CHECKING:
    from collections.abc import Callable

_TERMINATE_SECONDS = 10
_STUB_SECONDS = 5
_POLL_SECONDS = 0.1


def start_server(command: list[str], environment: dict[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a program that the kernel ends as soon as the calling thread ends.

    It leads a process group of its own, so that a Ctrl-C reaches it through `end_server` only.
    """
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=_tied_to(os.getpid()),  # noqa: PLW1509 - only the child itself can ask for this signal
    )


def _tied_to(parent: int) -> Callable[[], None]:
    """What the child does before it becomes the server."""
    parent_lives = dying_with(parent)

    def follow() -> None:
        if not parent_lives():
            os._exit(1)

    return follow


def end_server(server: subprocess.Popen[bytes]) -> None:
    """End the server gently, after ten seconds by force, and then what is left of its process group: Python stubs."""
    server.terminate()
    try:
        server.wait(_TERMINATE_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    deadline = time.monotonic() + _STUB_SECONDS
    while _signal_group(server.pid, 0) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    _signal_group(server.pid, signal.SIGKILL)


def _signal_group(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True
