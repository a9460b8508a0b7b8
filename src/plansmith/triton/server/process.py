"""The process of a Triton server and of the Python stubs that it starts: begun, tied to this one, ended."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import IO

from plansmith.system.process import signal_group, tied_to, wait_for_group

_TERMINATE_SECONDS = 10
_STUB_SECONDS = 5


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
        preexec_fn=tied_to(os.getpid()),  # noqa: PLW1509 - only the child itself can ask for this signal
    )


def end_server(server: subprocess.Popen[bytes]) -> None:
    """End the server gently, after ten seconds by force, and then what is left of its process group: Python stubs."""
    server.terminate()
    try:
        server.wait(_TERMINATE_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    wait_for_group(server.pid, _STUB_SECONDS)
    signal_group(server.pid, signal.SIGKILL)
