"""The command line in a process of its own that need not import anything: a fork of one that has done so.

To start an interpreter and import PyTorch and the exporters costs several times what a compile of a tiny model does.
`Popen` is for tests to which the command matters and not its interpreter's start; see `warm_server` for the difference.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from .waiting import soon
from .warm_server import NUMBER

COMMAND = [sys.executable, "-m", "plansmith"]

_ROOT = Path(__file__).parents[2]
_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "OMP_", "HF_", "TRANSFORMERS_", "MALLOC_")
"""Variables that are read when an interpreter or a library starts."""


class Popen(subprocess.Popen[Any]):
    """`subprocess.Popen`; where it starts the command line as it is started here, that is a fork of a warm process.

    What CPython 3.11's own does between fork and exec, and to wait for its child, is done by the warm process.
    """

    _told: int | None = None

    def _execute_child(self, args: Any, *rest: Any) -> None:
        (_, preexec, _, passed, folder, environment, _, _, shell) = rest[:9]
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, _, gid, gids, uid, umask, session, group = rest[9:]
        environment = dict(os.environ if environment is None else environment)
        plain = (preexec, passed, shell, gid, gids, uid, umask, group) == (None, (), False, None, None, None, -1, -1)
        words = list(map(str, args)) if plain and not isinstance(args, str | bytes) else []
        if words[:3] != COMMAND or not _warm().fits(environment):
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        request = {
            "words": words[3:],
            "folder": str(Path(os.fsdecode(folder or "")).absolute()),
            "environment": environment,
            "session": session,
        }
        streams = [number if given == -1 else given for number, given in enumerate((p2cread, c2pwrite, errwrite))]
        self._told = _warm().ask(request, streams)
        self.pid = self._hear()
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]

    def _hear(self) -> int:
        assert self._told is not None
        heard = os.read(self._told, NUMBER.size)
        assert heard, "the warm process has ended"
        return int(NUMBER.unpack(heard)[0])

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._told is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc,no-any-return]
        os.set_blocking(self._told, not wait_flags & os.WNOHANG)
        try:
            status = self._hear()
        except BlockingIOError:
            return 0, 0
        os.close(self._told)
        return self.pid, status

    def _internal_poll(self, *given: Any, **more: Any) -> int | None:
        if self._told is None:
            return super()._internal_poll(*given, **more)  # type: ignore[misc,no-any-return]
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):  # type: ignore[attr-defined]
            try:
                number, status = self._try_wait(os.WNOHANG)
                if number:
                    self.returncode = os.waitstatus_to_exitcode(status)
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


def run(
    command: Sequence[str], *, timeout: float | None = None, fresh: bool = False, **given: Any
) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` that captures text and has no input, by `Popen`.

    Args:
        command: the command line.
        timeout: seconds after which it is killed.
        fresh: by an interpreter of its own, with a hash seed of its own.
        given: `cwd` and `env` as `subprocess.Popen` takes them.
    """
    start: type[subprocess.Popen[Any]] = subprocess.Popen if fresh else Popen
    piped: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    with start(command, **piped, **given) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


class _Warm:
    """The warm process: one for all the processes of a parallel test run, started by the first that needs it.

    It ends when the last of them has.
    """

    def __init__(self) -> None:
        self._variables = _at_start(os.environ)
        self._lock = threading.Lock()
        self._control = _connected(_address(self._variables))
        atexit.register(self._control.close)

    def fits(self, environment: Mapping[str, str]) -> bool:
        """Whether an interpreter with this environment would have started as the warm one has."""
        return _at_start(environment) == self._variables

    def ask(self, request: Mapping[str, Any], streams: list[int]) -> int:
        """Have a command started; where its number and then its status can be read."""
        heard, told = os.pipe()
        try:
            with self._lock:
                socket.send_fds(self._control, [json.dumps(request).encode()], [*streams, told])
        finally:
            os.close(told)
        return heard


def _address(variables: Mapping[str, str]) -> str:
    """Where this test run's processes meet: a name that Linux forgets with the socket."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    started = hashlib.sha256(json.dumps(variables, sort_keys=True).encode()).hexdigest()
    return f"\0plansmith-warm-{run}-{started[:16]}"


def _connected(address: str) -> socket.socket:
    """A connection to the warm process, which is started where nobody did so."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            listener.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            listener.listen()
            _start(listener)
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    assert soon(lambda: control.connect_ex(address), 0) == 0, "who started the warm process has ended"
    return control


class _Left(subprocess.Popen[bytes]):
    """A process that nobody waits for, as others may need it still; Python shall not warn of that."""

    def __del__(self) -> None:
        return


def _start(listener: socket.socket) -> None:
    _Left(
        [sys.executable, "-m", f"{__package__}.warm_server", str(listener.fileno())],
        cwd=_ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[listener.fileno()],
    )


@cache
def _warm() -> _Warm:
    return _Warm()


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in environment.items() if key.startswith(_AT_START)}
