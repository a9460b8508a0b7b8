"""Child processes: start, commands, supervision, and termination when plansmith dies.

One worker serves a whole compile: the parent stays light, and the libraries that take seconds to
import and gigabytes to use are loaded once, in the worker. Both speak JSON, one document a line, over a
socket pair; what the worker prints goes to a log file.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol

from plansmith.errors import EnvironmentFault, InternalError, PlansmithError, error_from_dict
from plansmith.formatting import format_bytes
from plansmith.system import memory
from plansmith.system.files import make_folder, make_scratch, remove_scratch
from plansmith.system.garbage import collect_seldom

_POLL_SECONDS = 0.01
_PROC = Path("/proc")

ISOLATION = "plansmith.system.isolation"
"""Run before a module of a worker that is to be isolated."""

_PR_SET_PDEATHSIG = 1
_LOG_TAIL_LINES = 5
_GONE_SECONDS = 5
# The leader itself, and the `sleep`, outlive the signals that end others politely.
_LEADER = "trap '' HUP INT TERM; read -r _; sleep {seconds:g}; kill -KILL 0"


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group, or check for processes with 0; return whether there are any."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def dying_with(parent: int) -> Callable[[], bool]:
    """Return the call that ties a process to its parent: the kernel kills it when the thread that started it ends.

    The library is loaded at once, so that the call may stand between fork and exec (Linux prctl, PR_SET_PDEATHSIG).

    Args:
        parent: the number of the process that started it.

    Returns:
        A function that says whether the parent still lives; where it does not, there is nobody to die with.
    """
    import ctypes

    prctl = ctypes.CDLL(None).prctl

    def follow() -> bool:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        return os.getppid() == parent

    return follow


def tied_to(parent: int) -> Callable[[], None]:
    """Return the `preexec_fn` for a program that the kernel is to kill when its parent ends.

    Args:
        parent: the process that starts it, whose thread that does so must last as long as the program.
    """
    parent_lives = dying_with(parent)

    def follow() -> None:
        if not parent_lives():
            os._exit(1)

    return follow


def end_with(process: int, *, before: Callable[[], None], grace_seconds: float) -> None:
    """End this process once another one, not necessarily its parent, has ended in any way.

    Args:
        process: the other one's number.
        before: done in between, in a thread of its own; this process ends whatever comes of it.
        grace_seconds: between SIGTERM and SIGKILL.
    """
    try:
        handle: int | None = os.pidfd_open(process)
    except ProcessLookupError:
        handle = None

    def follow() -> None:
        if handle is not None:
            ended = select.poll()
            ended.register(handle, select.POLLIN)
            ended.poll()
        try:
            before()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(grace_seconds)
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=follow, name=f"ends with {process}", daemon=True).start()


class ProcessGroup:
    """A process group that ends with this process, however that ends.

    Its leader is a shell that reads from a pipe of which this process holds the only other end: the kernel closes that
    with this process, and the leader then kills the group, itself included. So it reaches what the processes of the
    group started, too, which a death signal (prctl, PR_SET_PDEATHSIG) does not.

    Args:
        grace_seconds: how long they have to find out by themselves, and to tidy up.

    Attributes:
        number: of the group, for `process_group` of `subprocess.Popen`; nobody else's until `end`.
    """

    def __init__(self, grace_seconds: float = 0) -> None:
        self._leader = subprocess.Popen(
            ["/bin/sh", "-c", _LEADER.format(seconds=grace_seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
        self.number = self._leader.pid

    def wait(self, seconds: float) -> None:
        """Wait until all other processes of the group have ended, up to a timeout."""
        deadline = time.monotonic() + seconds
        while members_of(self.number) - {self.number} and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def end(self) -> None:
        """Kill the remaining processes of the group, and wait until they have ended. Idempotent."""
        if self._leader.returncode is not None:
            return
        signal_group(self.number, signal.SIGKILL)
        self.wait(_GONE_SECONDS)
        self._leader.communicate()


def members_of(group: int, proc: Path = _PROC) -> set[int]:
    """Return the running processes of a group.

    Args:
        group: its number.
        proc: where processes are described; in `stat`, state and group are the first and third behind the name, which
            may hold anything (Linux proc(5)).
    """
    pids = set()
    for stat in proc.glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            state, _, number = stat.read_text().rpartition(")")[2].split()[:3]
            if int(number) == group and state != "Z":
                pids.add(int(stat.parent.name))
    return pids


def log_tail(log: Path, lines: int = _LOG_TAIL_LINES, *, begin: int = 0) -> str:
    """Return the last non-empty lines of a log, after its first `begin` bytes."""
    try:
        text = log.read_bytes()[begin:].decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])


class StartedProcess(Protocol):
    """A worker process that runs."""

    @property
    def pid(self) -> int:
        """Its number."""

    def wait(self) -> tuple[int, int]:
        """Wait for its end; return its exit code, or minus the signal, and its peak memory in bytes."""


class WorkerStarter(Protocol):
    """What starts worker processes of one module."""

    @property
    def module(self) -> str:
        """The module that they run."""

    def start(self, connection: socket.socket, output: BinaryIO, group: int, temporary: Path) -> StartedProcess | None:
        """Start a worker; None if it cannot, and `python -m module` has to be run.

        Args:
            connection: that it serves.
            output: takes what it prints.
            group: its process group.
            temporary: for its temporary files.
        """


starter: ContextVar[WorkerStarter | None] = ContextVar("starter", default=None)
"""Starts workers of its module in place of `python -m`, where one is set: see `fork_server`."""


@dataclass(frozen=True)
class _Program:
    """A worker that was started as a program of its own."""

    pid: int

    def wait(self) -> tuple[int, int]:
        return memory.wait_for(self.pid)


class Worker:
    """Worker process that answers requests until it is closed.

    Its temporary files lie in a folder of their own, which goes with it: it is ended by a kill, and tidies up nothing.
    What it started ends with it.

    Args:
        module: run as `python -m module <file descriptor>`; it serves the descriptor with `serve`.
        log: takes everything that the child prints.
        progress: told what the child is doing, in a few words.
        environment: variables that the child has besides, or instead of, those of this process.
        isolated: keep the child from the network and its user's credentials, where the kernel allows it.
    """

    def __init__(
        self,
        module: str,
        log: Path,
        progress: Callable[[str], None] = lambda _: None,
        *,
        environment: Mapping[str, str] | None = None,
        isolated: bool = False,
    ) -> None:
        self._log = log
        self._progress = progress
        self._out_of_time = False
        self._doing = ""
        self._peak_bytes = 0
        ours, theirs = socket.socketpair()
        make_folder(log.parent)
        self._temporary = make_scratch("worker")
        self._group = ProcessGroup()
        with theirs, log.open("ab") as output:
            self._log_begins = output.tell()
            started, given = None, starter.get()
            if given is not None and given.module == module and not environment and not isolated:
                started = given.start(theirs, output, self._group.number, self._temporary)
            modules = [ISOLATION, module] if isolated else [module]
            self._process = started or self._start_program(modules, theirs, output, environment or {})
        self._status: int | None = None
        self._stream = ours.makefile("rwb")
        ours.close()
        self._watch = memory.Watch(self._process.pid)

    def _start_program(
        self, modules: Sequence[str], connection: socket.socket, output: BinaryIO, environment: Mapping[str, str]
    ) -> StartedProcess:
        process = subprocess.Popen(
            [sys.executable, "-m", *modules, str(connection.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[connection.fileno()],
            env={**os.environ, **memory.reused_memory(), "TMPDIR": str(self._temporary), **environment},
            process_group=self._group.number,
        )
        process.returncode = 0  # or Popen itself would wait for it some day, and take its status away from `wait`
        return _Program(process.pid)

    @property
    def is_dead(self) -> bool:
        """Whether a call found that the worker process has ended."""
        return self._status is not None

    @property
    def death(self) -> str:
        """How the worker ended: "signal SIGSEGV" or "exit code 1"; only if `is_dead`."""
        assert self._status is not None
        status = self._status
        return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"

    @property
    def number(self) -> int:
        """The worker's process ID."""
        return self._process.pid

    @property
    def doing(self) -> str:
        """The worker's last progress message; empty if there is none."""
        return self._doing

    @property
    def is_out_of_time(self) -> bool:
        """Whether the worker was killed because a limit of `limited` was exceeded."""
        return self._out_of_time

    def kill(self) -> None:
        """Kill the worker from another thread; a pending call raises."""
        if not self.is_dead:
            with suppress(ProcessLookupError):
                os.kill(self.number, signal.SIGKILL)

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """Timeout: kill the worker if the `with` block lasts longer; its pending call then raises."""

        def end() -> None:
            self._out_of_time = True
            self.kill()

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()

    def call(self, name: str, /, **arguments: Any) -> Any:
        """Call a function in the worker and return its result.

        Raises:
            PlansmithError: the child's own error, or what is known about its death.
        """
        self._doing = ""
        if not self.is_dead:
            self._watch = memory.Watch(self._process.pid)
        try:
            self._stream.write(json.dumps({"call": name, "arguments": arguments}).encode() + b"\n")
            self._stream.flush()
            for line in self._stream:
                if not line.endswith(b"\n"):
                    break  # it died while it answered
                message = json.loads(line)
                if "progress" in message:
                    self._doing = message["progress"]
                    self._progress(self._doing)
                    continue
                self._log_begins = self._log.stat().st_size
                if "error" in message:
                    raise error_from_dict(message["error"]).located(log=self._log)
                return message["answer"]
        except (BrokenPipeError, ConnectionResetError):
            pass
        raise self._obituary(name)

    def _obituary(self, name: str) -> Exception:
        if not self.is_dead:
            self._reap()
        status, tail = self._status, log_tail(self._log, begin=self._log_begins)
        during = f"during {name} ({self._doing})" if self._doing else f"during {name}"
        if status == -signal.SIGKILL:
            cause, remedy = self._watch.verdict()
            return EnvironmentFault(
                f"the worker was killed {during}, {cause}; it held up to {format_bytes(self._peak_bytes)}",
                remedy=remedy,
                log=self._log,
            )
        sign = memory.tells_of_memory(tail)
        if sign is not None:
            return EnvironmentFault(
                f"the worker ran out of memory {during} and gave up: {sign}; it held up to"
                f" {format_bytes(self._peak_bytes)}",
                remedy=memory.REMEDY,
                log=self._log,
            )
        return InternalError(
            f"the worker ended {during} with {self.death}:\n{tail}",
            remedy="read the log; if the model is sound, please report this",
            log=self._log,
        )

    def _reap(self) -> None:
        """Wait for the child process to exit, then end the processes it started."""
        self._status, self._peak_bytes = self._process.wait()
        self._group.end()

    def close(self) -> None:
        """Kill the worker at once."""
        if not self.is_dead:
            self.kill()
            self._reap()
        with suppress(ConnectionError):  # a request that the child did not live to read
            self._stream.close()
        remove_scratch(self._temporary)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def serve(functions: dict[str, Callable[..., Any]], descriptor: int) -> None:
    """Serve calls on a descriptor until the parent closes it: the child's side of `Worker`.

    Interrupts are the parent's business: whoever ends a service may send a signal to all of its processes; the parent
    then ends this one. Died it first, the parent might take that for a failure. Programs that this process starts do
    not inherit the descriptor: its end is this process's.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)  # ignored, it would be by the programs that are started here as well
    os.set_inheritable(descriptor, False)
    collect_seldom()
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rwb") as stream:

        def send(message: dict[str, Any]) -> None:
            stream.write(json.dumps(message).encode() + b"\n")
            stream.flush()

        for line in stream:
            request = json.loads(line)
            try:
                answer = functions[request["call"]](
                    **request["arguments"], progress=lambda text: send({"progress": text})
                )
            except Exception as error:  # noqa: BLE001 - the traceback goes to the log, the parent says where
                fault = _translate_error(error)
                if fault is not error:
                    traceback.print_exc()
                send({"error": fault.to_dict()})
            else:
                send({"answer": answer})


def _translate_error(error: Exception) -> PlansmithError:
    """Translate the child's error: its own message, an out-of-memory fault, or a bug."""
    text = f"{type(error).__name__}: {error}"
    sign = memory.tells_of_memory(text)
    if sign is not None:
        return EnvironmentFault(f"the worker ran out of memory: {sign}", remedy=memory.REMEDY)
    if isinstance(error, PlansmithError):
        return error
    return InternalError(text, remedy="please report this with the log")
