"""The process of trtexec: started, listened to line by line, ended at its deadline, and taken along when we die."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from plansmith.errors import EnvironmentFault
from plansmith.system import memory
from plansmith.system.process import signal_group, tied_to

_POLL_SECONDS = 0.2
_TERMINATE_SECONDS = 10
_CHUNK_BYTES = 65536


@dataclass(frozen=True)
class Ended:
    """How a program ended.

    `status`: its exit code, or minus the signal, None where it was ended at its deadline; `peak_bytes`: most memory
    that it held; `killer` and `killer_remedy`: who killed it, where something did.
    """

    text: str
    status: int | None
    peak_bytes: int
    killer: str = ""
    killer_remedy: str = ""


def run(
    command: Sequence[str], environment: Mapping[str, str], *, deadline_seconds: float, on_line: Callable[[str], None]
) -> Ended:
    """Run a program to its end or its deadline; no shell reads its arguments.

    It leads a group of its own, which is ended with it, also when `on_line` raises; the kernel ends it when the
    thread that calls this does. It inherits what this process holds open to be inherited, such as the GPU's lock.

    Args:
        command: the program and its arguments.
        environment: of the program, all of it.
        deadline_seconds: after which it is asked to end, and killed ten seconds later.
        on_line: told every line that it writes, on either stream.

    Raises:
        EnvironmentFault: it cannot be started.
    """
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            close_fds=False,
            preexec_fn=tied_to(os.getpid()),  # noqa: PLW1509 - only the child itself can ask for this signal
        )
    except OSError as error:
        raise EnvironmentFault(
            f"{command[0]} cannot be run: {error.strerror}",
            remedy="set tensorrt: trtexec to the program, or use --builder api",
        ) from error
    watch = memory.Watch(process.pid)
    deadline = time.monotonic() + deadline_seconds
    said: list[str] = []
    try:
        for line in _lines(process, deadline):
            said.append(line)
            on_line(line)
        in_time = _is_dead_by(process.pid, deadline)
    finally:
        peak = _end(process)
    status = process.returncode if in_time else None
    text = "\n".join(said)
    if status == -signal.SIGKILL:
        return Ended(text, status, peak, *watch.verdict())
    return Ended(text, status, peak)


def _lines(process: subprocess.Popen[bytes], deadline: float) -> Iterator[str]:
    """What is written until the program ends, nobody writes any more, or the deadline is there."""
    assert process.stdout is not None
    descriptor, rest = process.stdout.fileno(), b""
    while time.monotonic() < deadline:
        is_dead = _is_dead(process.pid)
        ready, _, _ = select.select([descriptor], [], [], 0 if is_dead else _POLL_SECONDS)
        if not ready and is_dead:
            break  # a process that it started may hold the pipe open for ever
        if ready:
            chunk = os.read(descriptor, _CHUNK_BYTES)
            if not chunk:
                break
            *whole, rest = (rest + chunk).split(b"\n")
            yield from (line.decode(errors="replace").rstrip("\r") for line in whole)
    if rest:
        yield rest.decode(errors="replace")


def _is_dead_by(process: int, deadline: float) -> bool:
    while not _is_dead(process):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _is_dead(process: int) -> bool:
    """Whether a child has ended; its status is left for `memory.wait_for`, which tells how much it held."""
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(process: subprocess.Popen[bytes]) -> int:
    """End a program and all that it started, and say how much memory it held at most."""
    if not _is_dead(process.pid):
        signal_group(process.pid, signal.SIGTERM)
        if not _is_dead_by(process.pid, time.monotonic() + _TERMINATE_SECONDS):
            signal_group(process.pid, signal.SIGKILL)
    process.returncode, peak = memory.wait_for(process.pid)
    signal_group(process.pid, signal.SIGKILL)
    assert process.stdout is not None
    process.stdout.close()
    return peak
