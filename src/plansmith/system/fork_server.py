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
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

from plansmith.system import memory
from plansmith.system.files import make_scratch, remove_scratch
from plansmith.system.process import ProcessGroup, StartedProcess, serve, starter

SOCKET_VARIABLE = "PLANSMITH_FORK_SERVER"
"""Names the socket of a fork server to a process that shall use it, and start none of its own."""

_MESSAGE_BYTES = 65536


@contextmanager
def forked_workers(
    module: str, libraries: Sequence[str], *, environment: Mapping[str, str] | None = None
) -> Iterator[ForkServer]:
    """Fork the workers of the block from one process, which starts with the first of them.

    Args:
        module: the worker module; it, or the `__main__` of a package, has `functions()` for `process.serve`.
        libraries: top-level packages that are imported ahead for a worker if an earlier one had imported them. None of
            them may start threads or use a GPU when it is imported.
        environment: variables that the workers have besides, or instead of, those of this process.
    """
    with ForkServer(module, libraries, environment or {}) as server:
        token = starter.set(server)
        try:
            yield server
        finally:
            starter.reset(token)


class ForkServer:
    """The driver's side of a fork server; see `forked_workers` for the arguments."""

    def __init__(self, module: str, libraries: Sequence[str], environment: Mapping[str, str]) -> None:
        self.module = module
        self._libraries = tuple(libraries)
        self._environment = environment
        self._lock = threading.Lock()
        self._running: _Running | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def address(self) -> str:
        """The server's socket, for `SOCKET_VARIABLE` of another process; starts the server."""
        with self._lock:
            return str(next(self._servers()).address)

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
        shared = os.environ.get(SOCKET_VARIABLE)
        if self._running is None and shared:
            with suppress(OSError):
                self._running = _Running.connect(Path(shared))
        if self._running is not None:
            yield self._running
        self._running = _Running.begin(self.module, self._libraries, self._environment)
        yield self._running

    def _end(self) -> None:
        if self._running is not None:
            self._running.end()
            self._running = None


@dataclass
class _Running:
    """A running server, and the connection to it.

    Attributes:
        connection: where it is asked.
        address: its socket.
        owned: its process, process group and temporary files, if this process started it.
    """

    connection: socket.socket
    address: Path
    owned: tuple[subprocess.Popen[bytes], ProcessGroup, Path] | None = None

    @classmethod
    def begin(cls, module: str, libraries: Sequence[str], environment: Mapping[str, str]) -> Self:
        """Start a server."""
        ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        scratch, group = make_scratch("fork-server"), ProcessGroup()
        address = scratch / "socket"
        with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            with _short_path(address) as path:
                listening.bind(path)
            listening.listen()
            descriptors = [theirs.fileno(), listening.fileno()]
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, module, *map(str, descriptors), *libraries],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=descriptors,
                # PyTorch asks the driver's library otherwise whether there is a GPU, and a fork could not use it then.
                env={
                    **os.environ,
                    **memory.reused_memory(),
                    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
                    "TMPDIR": str(scratch),
                    **environment,
                },
                process_group=group.number,
            )
        return cls(ours, address, (process, group, scratch))

    @classmethod
    def connect(cls, address: Path) -> Self:
        """Connect to a server that another process started.

        Raises:
            OSError: there is none.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with _short_path(address) as path:
                connection.connect(path)
        except OSError:
            connection.close()
            raise
        return cls(connection, address)

    def ask(self, request: dict[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any] | None:
        """Return the server's answer; None if it has ended."""
        try:
            socket.send_fds(self.connection, [json.dumps(request).encode()], descriptors)
            answer = self.connection.recv(_MESSAGE_BYTES)
        except OSError:
            return None
        return json.loads(answer) if answer else None

    def end(self) -> None:
        """Close the connection; end the server and remove its temporary files if this process started it."""
        self.connection.close()
        if self.owned is not None:
            process, group, scratch = self.owned
            group.end()
            process.wait()
            remove_scratch(scratch)


@contextmanager
def _short_path(address: Path) -> Iterator[str]:
    """Return a path to a socket that is short enough: its address has 108 bytes at most (Linux unix(7))."""
    folder = os.open(address.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{address.name}"
    finally:
        os.close(folder)


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


def main(module: str, owner: int, listening: int, libraries: Sequence[str]) -> None:
    """Serve drivers until the one that started this server closes its connection: fork workers, and wait for them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    package = importlib.import_module(module)
    functions = (importlib.import_module(f"{module}.__main__") if hasattr(package, "__path__") else package).functions()
    first, door = socket.socket(fileno=owner), socket.socket(fileno=listening)
    with tempfile.TemporaryFile(buffering=0) as notes, selectors.DefaultSelector() as ready:
        server = _Server(functions, frozenset(libraries), notes, [first, door])
        ready.register(first, selectors.EVENT_READ)
        ready.register(door, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                if connection is door:
                    server.open.append(door.accept()[0])
                    ready.register(server.open[-1], selectors.EVENT_READ)
                elif not server.answer(connection):
                    if connection is first:
                        return
                    ready.unregister(connection)
                    server.open.remove(connection)
                    connection.close()


@dataclass
class _Server:
    """The server's side.

    Attributes:
        functions: of the workers.
        libraries: which are imported ahead.
        notes: what workers have imported of them, a name a line; they append to it.
        open: the sockets that no worker may keep open.
    """

    functions: dict[str, Callable[..., Any]]
    libraries: frozenset[str]
    notes: Any
    open: list[socket.socket]
    _read: int = 0

    def answer(self, connection: socket.socket) -> bool:
        """Answer a request; return whether there was one, and not the connection's end."""
        try:
            message, descriptors, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, 2)
        except ConnectionError:
            return False
        if not message:
            return False
        request = json.loads(message)
        if "wait" in request:
            status, peak_bytes = memory.wait_for(request["wait"])
            answer = {"status": status, "peak_bytes": peak_bytes}
        else:
            answer = {"pid": self._fork(request, descriptors)}
        with suppress(ConnectionError):  # the driver has ended, and its worker ends with it
            connection.sendall(json.dumps(answer).encode())
        return True

    def _fork(self, request: dict[str, Any], descriptors: Sequence[int]) -> int:
        self._import_noted()
        gc.freeze()  # a collection in a worker would copy every page of what it shares
        pid = os.fork()
        if pid == 0:
            for each in self.open:
                each.close()
            _be_worker(self.functions, descriptors, request, _Notes(self.notes, self.libraries))
        with suppress(ProcessLookupError, PermissionError):  # the worker does so, too: whoever comes first
            os.setpgid(pid, request["group"])
        for descriptor in descriptors:
            os.close(descriptor)
        return pid

    def _import_noted(self) -> None:
        """Import what workers have noted since the last time."""
        size = os.fstat(self.notes.fileno()).st_size
        names = os.pread(self.notes.fileno(), size - self._read, self._read).decode().split()
        self._read = size
        for name in names:
            if name not in sys.modules:
                with suppress(Exception):  # what cannot be imported ahead, a worker that needs it imports itself
                    importlib.import_module(name)


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
            os.write(self.file.fileno(), "".join(f"{name}\n" for name in names).encode())


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
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
