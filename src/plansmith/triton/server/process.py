"""The process of a Triton server and of the Python stubs that it starts: begun, tied to this one, ended."""

from __future__ import annotations

import subprocess
from typing import IO

from plansmith.system.process import ProcessGroup

_TERMINATE_SECONDS = 10
_STUB_SECONDS = 5


def start_server(
    command: list[str], environment: dict[str, str], log: IO[bytes], group: ProcessGroup
) -> subprocess.Popen[bytes]:
    """Start a program in a process group, so that a Ctrl-C reaches it through `end_server` only."""
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        process_group=group.number,
    )


def end_server(server: subprocess.Popen[bytes], group: ProcessGroup) -> None:
    """End the server gently, after ten seconds by force, and then what is left of its group: Python stubs."""
    server.terminate()
    try:
        server.wait(_TERMINATE_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    group.wait(_STUB_SECONDS)
    group.end()
