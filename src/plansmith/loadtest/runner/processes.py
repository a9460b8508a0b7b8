"""Client process management: starts the processes of a load test, sends commands and receives events."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from plansmith.errors import EnvironmentFault, UsageError, first_line
from plansmith.loadtest.client.process import LOST, MODULE, REFUSED
from plansmith.loadtest.stages import LoadPlan
from plansmith.loadtest.target import LoadTarget
from plansmith.records.model import Record
from plansmith.system.files import scratch_folder
from plansmith.system.process import log_tail

DEFAULT_PORT = 5557
"""Where Locust's own driver listens."""

_WAIT_SECONDS = 300.0
_POLL_SECONDS = 0.5
_MAX_PORT = 65535

_END_SECONDS = 5
_START_SECONDS = 60
_MAX_STOP_SECONDS = 10
_HOST = "127.0.0.1"


class RemoteWorkers(Record):
    """Remote workers: the client processes on other machines that a driver waits for.

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
        """Check that the driver can listen on its address.

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
    """Parse HOST or HOST:PORT of a driver.

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
    """Generate load for a test's driver on another machine until the driver ends.

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
    """Yield client processes that are ended with the block."""
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


class ClientLost(Exception):
    """Lost client: a client process ended, and its share of the load with it."""


class ClientProcesses:
    """Client processes of a load test; a context manager.

    Args:
        target: where they send requests.
        plan: their settings.
        folder: takes their logs.
        workers: those on other machines that generate the load; None where processes of this machine do.

    Attributes:
        machines: that of each worker, where they are on other machines.

    Raises:
        EnvironmentFault: on entering the block, where they do not start, or do not come.
    """

    def __init__(self, target: LoadTarget, plan: LoadPlan, folder: Path, workers: RemoteWorkers | None = None) -> None:
        self.machines: tuple[str, ...] = ()
        self._workers = workers
        self._target = target
        self._plan = plan
        self._folder = folder
        self._partial = b""
        self._lines: deque[bytes] = deque()
        self._processes: list[tuple[subprocess.Popen[bytes], Path]] = []

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._workers is not None:
            self._workers.require_free()
        self._socket, theirs = socket.socketpair()
        try:
            with theirs:
                self._start("client", ["lead", str(theirs.fileno()), str(os.getpid())], theirs.fileno())
            self._start_workers()
            self.send(
                "prepare",
                target=self._target.model_dump(mode="json"),
                timeout_seconds=self._plan.timeout_seconds,
                pacing_seconds=self._plan.pacing_seconds,
                seed=self._plan.seed,
                max_in_flight=self._plan.max_in_flight,
            )
            self._await("prepare", self._wait_seconds)
        except ClientLost as lost:
            self._kill()
            raise EnvironmentFault(
                f"the client processes of the load test do not start: {lost}",
                remedy="read their log",
                log=self._folder / "client.log",
            ) from lost
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, command: str, **fields: Any) -> None:
        """Send a command to the lead process.

        Raises:
            ClientLost: it has ended.
        """
        self._write({"command": command, **fields})

    def events(self, seconds: float) -> Iterator[dict[str, Any]]:
        """Yield earlier events, and new ones as they arrive within a number of seconds.

        Raises:
            ClientLost: a process has ended.
        """
        deadline = time.monotonic() + seconds
        while True:
            while self._lines:
                yield json.loads(self._lines.popleft())
            if any(process.poll() is not None for process, _ in self._processes):
                raise self._lost()
            wait = deadline - time.monotonic()
            if select.select([self._socket], [], [], max(0.0, min(wait, _POLL_SECONDS)))[0]:
                self._receive()
            elif wait <= 0:
                return

    def close(self) -> None:
        """Terminate all processes; a second call does nothing."""
        with suppress(ClientLost):
            self.send("quit")
        for process, _ in self._processes:
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes = []
        self._socket.close()

    def _write(self, message: dict[str, Any]) -> None:
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise self._lost() from error

    def _kill(self) -> None:
        for process, _ in self._processes:
            process.kill()
        self.close()

    def _start(self, name: str, arguments: Sequence[str], descriptor: int | None = None) -> None:
        log = self._folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", MODULE, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[] if descriptor is None else [descriptor],
            )
        self._processes.append((process, log))

    def _start_workers(self) -> None:
        """Set up the lead process, and start its workers if it does not generate the load itself."""
        remote = self._workers
        local = self._plan.processes if self._plan.processes > 1 and remote is None else 0
        self._write(
            {
                "stop_seconds": min(self._plan.timeout_seconds, _MAX_STOP_SECONDS),
                "workers": remote.count if remote is not None else local,
                "host": remote.host if remote is not None else _HOST,
                "port": remote.port if remote is not None else 0,
                "is_remote": remote is not None,
            }
        )
        if local:
            port = self._await("listening", _START_SECONDS)["port"]
            for number in range(1, local + 1):
                self._start(f"worker-{number}", ["worker", str(os.getpid()), _HOST, str(port)])
        machines = self._await("started", self._wait_seconds)["machines"]
        self.machines = tuple(machines) if remote is not None else ()

    @property
    def _wait_seconds(self) -> float:
        return _START_SECONDS if self._workers is None else self._workers.wait_seconds

    def _await(self, event: str, seconds: float) -> dict[str, Any]:
        """Wait for an event.

        Raises:
            ClientLost: it does not come.
            EnvironmentFault: workers do not come, or have another version.
        """
        present = 0
        for message in self.events(seconds):
            if message["event"] == event:
                return message
            if message["event"] == "joined":
                present = message["workers"]
            if message["event"] == "refused":
                raise EnvironmentFault(message["reason"], remedy="install the same versions on all machines")
        if self._workers is not None and event == "started":
            raise EnvironmentFault(
                f"{present} of {self._workers.count} workers came within {seconds:g} s",
                remedy=f"start them: plansmith loadtest --worker HOST:{self._workers.port}, with the address of this"
                " machine, and see that its port is open",
            )
        raise ClientLost(f"no answer within {seconds:g} s")

    def _receive(self) -> None:
        try:
            received = self._socket.recv(2**20)
        except ConnectionError:
            received = b""
        if not received:
            raise self._lost()
        *lines, self._partial = (self._partial + received).split(b"\n")
        self._lines.extend(lines)

    def _lost(self) -> ClientLost:
        """Return an error that reports which process ended, and its last output."""
        deadline = time.monotonic() + _END_SECONDS
        while time.monotonic() < deadline:
            for process, log in self._processes:
                if (status := process.poll()) is not None:
                    how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"
                    return ClientLost(f"a client process ended with {how}: {log_tail(log, lines=3)}".rstrip(": "))
            time.sleep(0.01)
        return ClientLost("a client process does not answer")
