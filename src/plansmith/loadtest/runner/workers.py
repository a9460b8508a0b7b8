"""Client processes on other machines, as Locust has them: a driver waits for workers, and tells them what to send."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from plansmith.errors import EnvironmentFault, UsageError, first_line
from plansmith.loadtest.client.process import LOST, MODULE, REFUSED
from plansmith.records.model import Record
from plansmith.system.temporary import scratch_folder

DEFAULT_PORT = 5557
"""Where Locust's own driver listens."""

_WAIT_SECONDS = 300.0
_POLL_SECONDS = 0.5
_MAX_PORT = 65535


class RemoteWorkers(Record):
    """The client processes on other machines for which a driver waits.

    Locust's protocol has neither authentication nor encryption: whoever reaches the port gets the requests and their
    headers.

    Attributes:
        count: how many come, at least.
        host: the address at which the driver listens; 0.0.0.0 for all addresses of the machine.
        port: likewise.
        wait_seconds: how long it waits for them.
    """

    count: int
    host: str = "0.0.0.0"  # noqa: S104 - workers are on other machines
    port: int = DEFAULT_PORT
    wait_seconds: float = _WAIT_SECONDS

    def require_free(self) -> None:
        """Check that the driver can listen there.

        Raises:
            EnvironmentFault: it cannot.
        """
        try:
            socket.create_server((self.host, self.port)).close()
        except OSError as error:
            raise EnvironmentFault(
                f"workers cannot be awaited at {self.host}:{self.port}: {error.strerror or first_line(error)}",
                remedy="end what listens there, or name another port, and an address of this machine: --listen",
            ) from error


def read_place(text: str, option: str) -> tuple[str, int]:
    """HOST or HOST:PORT of a driver.

    Raises:
        UsageError: another form.
    """
    host, colon, port = text.rpartition(":") if ":" in text else (text, "", "")
    number = int(port) if port.isdecimal() else 0 if colon else DEFAULT_PORT
    if not host or not 0 < number <= _MAX_PORT or not host.isascii() or not host.isprintable() or ":" in host:
        raise UsageError(f"{option} {text!r} is not HOST:PORT", remedy=f"write it like {option} driver:{DEFAULT_PORT}")
    return host, number


def run_workers(
    host: str, port: int, processes: int, *, progress: Callable[[str], None], wait_seconds: float = _WAIT_SECONDS
) -> None:
    """Generate load for the driver of a test on another machine until that ends.

    Args:
        host: of the driver.
        port: likewise.
        processes: client processes here.
        progress: takes a line about each step.
        wait_seconds: how long the driver may take to listen.

    Raises:
        EnvironmentFault: the driver is not reached, has another version, or is lost; or a process ends by itself.
    """
    progress(f"waiting up to {wait_seconds / 60:g} min for a load test at {host}:{port}")
    _await_driver(host, port, wait_seconds)
    with scratch_folder("worker") as scratch, _processes(host, port, processes, scratch) as running:
        progress(f"{processes} client process{'es' * (processes > 1)} of the load test at {host}:{port}")
        while any(process.poll() is None for process in running):
            if any(process.returncode for process in running):
                break
            time.sleep(_POLL_SECONDS)
        statuses = [process.returncode for process in running if process.returncode]
    if statuses:
        raise _fault(statuses[0], f"{host}:{port}")
    progress("the load test has ended")


@contextmanager
def _processes(host: str, port: int, count: int, scratch: str) -> Iterator[Sequence[subprocess.Popen[bytes]]]:
    """Client processes, which end with the block."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(count):
            arguments = ["remote", str(os.getpid()), host, str(port), f"{scratch}/{number}"]
            running.append(subprocess.Popen([sys.executable, "-m", MODULE, *arguments], stdin=subprocess.DEVNULL))
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def _await_driver(host: str, port: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=max(_POLL_SECONDS, deadline - time.monotonic())).close()
        except OSError as error:
            if time.monotonic() >= deadline:
                raise EnvironmentFault(
                    f"no load test listens at {host}:{port}: {first_line(error)}",
                    remedy="start it there (plansmith loadtest MODEL --url URL --expect-workers N), and open the port",
                ) from error
            time.sleep(_POLL_SECONDS)
        else:
            return


def _fault(status: int, place: str) -> EnvironmentFault:
    if status == REFUSED:
        return EnvironmentFault(
            f"the load test at {place} refuses this worker, as it says above",
            remedy="install the versions that the driver has, or start the worker before the test begins",
        )
    if status == LOST:
        return EnvironmentFault(
            f"the load test at {place} is not heard any more", remedy="see how it ended on the driver"
        )
    how = f"ended with signal {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
    return EnvironmentFault(
        f"a client process of the load test at {place} {how} before the test was over",
        remedy="see above, and how the test ended on the driver",
    )
