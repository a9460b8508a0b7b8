"""Programs that a test starts, kills and starts again; they and all that they started end with the test process.

A program and its descendants are known by a variable of their environment, whatever sessions and groups they are in:
Prefect's workers put each flow run into a session of its own. `watcher.py` ends them when the test process was killed.
"""

from __future__ import annotations

import os
import pwd
import random
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from . import watcher

_STOP_SECONDS = 30
_LOWEST_PORT, _HIGHEST_PORT = 10_000, 32_768
_POLL_SECONDS = 0.2


class Program:
    """A program that can be killed and started again, with a log of all that it and its children print.

    Args:
        command: its words.
        log: what it prints; started again, it goes on in it.
        environment: of the program, whole.
        user: who runs it, where it is not this user.
        folder: where it runs; that of this process without one.
        scratch: a folder that goes when it has ended for good.
        asked_by: the signal that asks it to end.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        *,
        user: str | None = None,
        folder: Path | None = None,
        scratch: Path | None = None,
        asked_by: signal.Signals = signal.SIGTERM,
    ) -> None:
        self.log = log
        self._command = list(command)
        self._mark = uuid.uuid4().hex
        self._environment = {**environment, watcher.VARIABLE: self._mark}
        self._user = user
        self._folder = folder
        self._scratch = scratch
        self._asked_by = asked_by
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    @property
    def number(self) -> int:
        """The number of its process."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self, is_ready: Callable[[], bool] | None = None, seconds: float = 0) -> None:
        """Start it, in a process group of its own, and wait until it is ready, where there is a way to tell."""
        self._watch()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
                cwd=self._folder,
                user=self._user,
                group=None if self._user is None else pwd.getpwnam(self._user).pw_gid,
                extra_groups=None if self._user is None else [],
            )
        if is_ready is not None:
            self.wait_until(is_ready, seconds)

    def wait_until(self, is_ready: Callable[[], bool], seconds: float) -> None:
        """Wait for something that it does; it must not end before."""
        assert self._process is not None
        deadline = time.monotonic() + seconds
        while not is_ready():
            assert self._process.poll() is None, f"it ended: {self._log_tail()}"
            assert time.monotonic() < deadline, f"it did not come up: {self._log_tail()}"
            time.sleep(_POLL_SECONDS)

    def processes(self) -> list[psutil.Process]:
        """It and what it started, as far as they run: also what it left behind."""
        result = []
        for number in watcher.marked(self._mark):
            try:
                result.append(psutil.Process(number))
            except psutil.NoSuchProcess:
                continue
        return result

    def kill(self) -> None:
        """SIGKILL to its process alone."""
        self._send(signal.SIGKILL)

    def kill_all(self) -> None:
        """SIGKILL to it and to all that it started, as when the power of a machine goes."""
        watcher.end(self._mark)
        self._send(signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to end, and end what does not; the end of its watcher, too."""
        if self._process is not None and self.is_running:
            self._process.send_signal(self._asked_by)
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._watcher is not None:
            self._watcher.communicate()
            self._watcher = None

    def _send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait()

    def _watch(self) -> None:
        if self._watcher is None:
            scratch = [] if self._scratch is None else [str(self._scratch)]
            self._watcher = subprocess.Popen(
                [sys.executable, "-I", watcher.__file__, self._mark, *scratch],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )

    def _log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])


def own_environment(**more: str) -> dict[str, str]:
    """This process's environment, without what the user set for Prefect and plansmith, and without a hub."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(("PLANSMITH_", "PREFECT_"))}
    return own | {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"} | more


def free_port() -> int:
    """A port of 127.0.0.1 at which nobody answers, and that is nobody's by chance.

    None of those that Linux gives to whoever names none: a server takes many seconds to start, and longer where it is
    killed and started again, while other tests have connections and servers begun.
    """
    given_out = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(_LOWEST_PORT, max(given_out, _HIGHEST_PORT))
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
