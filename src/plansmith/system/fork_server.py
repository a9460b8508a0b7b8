"""Fork server: workers of many models that import their libraries once.

A process of its own imports what earlier workers had imported, and forks for each new one. A worker still ends with its
model: its memory is given back, and its crash, its leaks and what it changed in a library reach no other.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from plansmith.system import memory
from plansmith.system.files import make_scratch, remove_scratch
from plansmith.system.process import ProcessGroup, StartedProcess, serve, starter

_MODULES_FILE = "modules"


@contextmanager
def forked_workers(module: str, libraries: Sequence[str]) -> Iterator[None]:
    """Fork the workers of the block from one process, which starts with the first of them.

    Args:
        module: the worker module; it, or the `__main__` of a package, has `functions()` for `process.serve`.
        libraries: top-level packages that are imported ahead for a worker if an earlier one had imported them. None of
            them may start threads or use a GPU when it is imported.
    """
    with ForkServer(module, libraries) as server:
        token = starter.set(server)
        try:
            yield
        finally:
            starter.reset(token)


class ForkServer:
    """The driver's side of a fork server; see `forked_workers` for the arguments."""

    def __init__(self, module: str, libraries: Sequence[str]) -> None:
        self.module = module
        self._libraries = tuple(libraries)
        self._lock = threading.Lock()
        self._running: _Running | None = None

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def start(self, connection: socket.socket, output: BinaryIO, group: int, temporary: Path) -> StartedProcess | None:
        """Fork a worker, for `process.starter`; None if no server starts."""
        request = {"group": group, "temporary": str(temporary)}
        descriptors = [connection.fileno(), output.fileno()]
        with self._lock:
            for server in self._servers():
                answer = server.ask(request, descriptors)
                if answer is not None:
                    return _Forked(answer["pid"], os.pidfd_open(answer["pid"]), server, self._lock)
                self._end()
        return None

    def _servers(self) -> Iterator[_Running]:
        """Yield the running server, if there is one, and then a new one."""
        if self._running is not None:
            yield self._running
        self._running = _Running.begin(self.module, self._libraries)
        yield self._running

    def _end(self) -> None:
        if self._running is not None:
            self._running.end()
            self._running = None


@dataclass
class _Running:
    """A running server.

    Attributes:
        process: the server.
        group: its process group, with which it ends.
        connection: where it is asked.
        answers: what is read from there.
        scratch: its temporary files.
    """

    process: subprocess.Popen[bytes]
    group: ProcessGroup
    connection: socket.socket
    answers: BinaryIO
    scratch: Path

    @classmethod
    def begin(cls, module: str, libraries: Sequence[str]) -> _Running:
        ours, theirs = socket.socketpair()
        scratch, group = make_scratch("fork-server"), ProcessGroup()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, module, str(theirs.fileno()), str(scratch), *libraries],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                # PyTorch asks the driver's library otherwise whether there is a GPU, and a fork could not use it then.
                env={**os.environ, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"},
                process_group=group.number,
            )
        return cls(process, group, ours, ours.makefile("rb"), scratch)

    def ask(self, request: dict[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any] | None:
        """Return the server's answer; None if it has ended."""
        try:
            socket.send_fds(self.connection, [json.dumps(request).encode() + b"\n"], descriptors)
            line = self.answers.readline()
        except (OSError, ValueError):  # it has died, or was ended here
            return None
        return json.loads(line) if line.endswith(b"\n") else None

    def end(self) -> None:
        """End the server, and remove its temporary files."""
        self.group.end()
        self.process.wait()
        self.answers.close()
        self.connection.close()
        remove_scratch(self.scratch)


@dataclass(frozen=True)
class _Forked:
    """A worker that a server forked, and waits for as its parent."""

    pid: int
    handle: int
    server: _Running
    lock: threading.Lock

    def wait(self) -> tuple[int, int]:
        ended = select.poll()
        ended.register(self.handle, select.POLLIN)
        ended.poll()
        os.close(self.handle)
        with self.lock:
            answer = self.server.ask({"wait": self.pid})
        # Where the server is gone nobody has the status any more; it takes a kill of both to come to this.
        return (answer["status"], answer["peak_bytes"]) if answer is not None else (-signal.SIGKILL, 0)


def main(module: str, descriptor: int, scratch: Path, libraries: Sequence[str]) -> None:
    """Serve the driver: fork workers, and wait for them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    package = importlib.import_module(module)
    functions = (importlib.import_module(f"{module}.__main__") if hasattr(package, "__path__") else package).functions()
    noted = scratch / _MODULES_FILE
    with noted.open("ab", buffering=0) as notes, socket.socket(fileno=descriptor) as connection:
        os.set_inheritable(descriptor, False)
        read = 0
        while True:
            line, descriptors, _, _ = socket.recv_fds(connection, 65536, 2)
            if not line:
                return
            request = json.loads(line)
            if "wait" in request:
                status, peak_bytes = memory.wait_for(request["wait"])
                answer: dict[str, Any] = {"status": status, "peak_bytes": peak_bytes}
            else:
                read = _import_noted(noted, read)
                gc.freeze()  # a collection in a worker would copy every page of what it shares
                answer = {"pid": os.fork()}
                if answer["pid"] == 0:
                    connection.close()
                    _be_worker(functions, descriptors, request, _Notes(notes, frozenset(libraries)))
                with suppress(ProcessLookupError, PermissionError):  # it does so itself, too: whoever comes first
                    os.setpgid(answer["pid"], request["group"])
                for each in descriptors:
                    os.close(each)
            connection.sendall(json.dumps(answer).encode() + b"\n")


def _import_noted(noted: Path, begin: int) -> int:
    """Import what workers have noted behind a position of the file; return its end."""
    with noted.open("rb") as notes:
        notes.seek(begin)
        names = notes.read().decode().split()
    for name in names:
        if name not in sys.modules:
            with suppress(Exception):  # what cannot be imported ahead, a worker that needs it imports itself
                importlib.import_module(name)
    return begin + sum(len(name) + 1 for name in names)


@dataclass
class _Notes:
    """Notes which libraries' modules a worker has imported."""

    file: Any
    libraries: frozenset[str]

    def __post_init__(self) -> None:
        self._known = set(sys.modules)

    def after(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that notes what another one imports when it is called."""

        def call(**arguments: Any) -> Any:
            try:
                return function(**arguments)
            finally:
                self._add()

        return call

    def _add(self) -> None:
        """Note the modules that were imported since, in their order."""
        new = [name for name in list(sys.modules) if name not in self._known]
        self._known.update(new)
        names = [name for name in new if name.partition(".")[0] in self.libraries and _has_file(name)]
        if names:
            self.file.write("".join(f"{name}\n" for name in names).encode())


def _has_file(name: str) -> bool:
    """Whether a module is what an import of its name gives, and no alias or object in its place."""
    spec = getattr(sys.modules[name], "__spec__", None)
    return spec is not None and spec.name == name and spec.has_location


def _be_worker(functions: dict[str, Any], descriptors: Sequence[int], request: dict[str, Any], notes: _Notes) -> None:
    """Serve a worker's connection as a process of its own; ends the process."""
    status: int = 1
    try:
        os.setpgid(0, request["group"])
        connection, output = descriptors
        for stream in (1, 2):
            os.dup2(output, stream)
        os.close(output)
        os.environ["TMPDIR"], tempfile.tempdir = request["temporary"], None
        sys.argv = [sys.argv[0], str(connection)]  # as a worker that is started as a program has it
        serve({name: notes.after(function) for name, function in functions.items()}, connection)
        status = 0
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:  # noqa: BLE001 - as an interpreter would: nothing of the server's goes on in a worker
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
