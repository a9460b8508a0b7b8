"""A worker without anything heavy in it; started by `process.Worker("tests.support.faults.tiny_worker", …)`."""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import resource
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plansmith.errors import GateError
from plansmith.system.process import serve

Progress = Callable[[str], None]


def echo(*, value: Any, progress: Progress) -> Any:
    del progress
    return value


def pid(*, progress: Progress) -> int:
    del progress
    return os.getpid()


def memory(*, progress: Progress) -> list[Any]:
    del progress
    return [gc.get_threshold()[0], os.environ["GLIBC_TUNABLES"]]


def wait(*, progress: Progress) -> None:
    progress("waiting")
    signal.pause()


def count(*, to: int, progress: Progress) -> int:
    for number in range(to):
        progress(f"at {number}")
    return to


def refuse(*, progress: Progress) -> None:
    del progress
    raise GateError("it differs\nmuch", remedy="look at it", model="tiny", step="validate", log=Path("/logs/own.log"))


def refuse_shortly(*, progress: Progress) -> None:
    del progress
    raise GateError("it differs")


def fail(*, progress: Progress) -> None:
    del progress
    raise ZeroDivisionError("a bug of ours")


def leave(*, status: int, progress: Progress) -> None:
    del progress
    sys.stdout.write("these are\n\nits last words\n")
    sys.exit(status)


def crash(*, progress: Progress) -> None:
    del progress
    os.kill(os.getpid(), signal.SIGSEGV)


def be_killed(*, progress: Progress) -> None:
    del progress
    os.kill(os.getpid(), signal.SIGKILL)


def tell_process(*, request: dict[str, Any], progress: Progress) -> dict[str, int]:
    del request, progress
    return {"number": os.getpid()}


def be_killed_by_task(*, request: dict[str, Any], progress: Progress) -> None:
    del request
    be_killed(progress=progress)


def be_killed_in_the_middle_of_an_answer(*, progress: Progress) -> None:
    del progress
    with socket.socket(fileno=os.dup(int(sys.argv[1]))) as connection:
        connection.sendall(b'{"answer": [1, 2')
        os.kill(os.getpid(), signal.SIGKILL)


def answer_with_what_is_no_json(*, progress: Progress) -> object:
    del progress
    return object()


def limit_memory(*, more: int, progress: Progress) -> None:
    """Let this process have some bytes more than it has now."""
    del progress
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def join(*, group: str, progress: Progress) -> None:
    """Go into a control group."""
    del progress
    (Path(group) / "cgroup.procs").write_text(str(os.getpid()))


def fill_memory(*, up_to: int, progress: Progress) -> int:
    progress("asking PyTorch at max (32x256)")
    chunks: list[bytearray] = []
    while len(chunks) * (1 << 20) < up_to:
        chunks.append(bytearray(os.urandom(4096) * 256))
    return len(chunks)


def allocate_in_torch(*, progress: Progress) -> None:
    del progress
    import torch

    torch.empty(1 << 50)


def allocate_in_cpp(*, progress: Progress) -> None:
    """The C++ allocator throws where nobody catches."""
    del progress
    new = ctypes.CDLL("libstdc++.so.6")["_Znwm"]
    new.argtypes, new.restype = [ctypes.c_size_t], ctypes.c_void_p
    new(1 << 60)


def leave_temporary_file(*, progress: Progress) -> str:
    """A file in a folder that nobody removes."""
    del progress
    path = Path(tempfile.mkdtemp()) / "file"
    path.write_text("left")
    return str(path)


def connect(*, port: int, progress: Progress) -> str:
    """Connect to a server of this machine; return what the system says of it."""
    del progress
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError as error:
        return str(error.strerror)
    return "connected"


def read(*, path: str, unmount: bool = False, progress: Progress) -> str:
    """Return what is in a file, or what the system says of it; take away first what lies over its folder, if it can."""
    del progress
    if unmount:
        libc = ctypes.CDLL(None)
        libc.umount2(os.fsencode(Path(path).parent), 2)
        libc.unshare(0x10020000)  # user and mount namespaces
        libc.umount2(os.fsencode(Path(path).parent), 2)
    try:
        return Path(path).read_text()
    except OSError as error:
        return str(error.strerror)


def variable(*, name: str, progress: Progress) -> str | None:
    """Return a variable of the environment."""
    del progress
    return os.environ.get(name)


def write(*, path: str, progress: Progress) -> int:
    """Write into a file; return its owner."""
    del progress
    Path(path).write_text("written")
    return Path(path).stat().st_uid


def import_module(*, name: str, progress: Progress) -> bool:
    """Import a module; return whether it was imported already."""
    del progress
    known = name in sys.modules
    importlib.import_module(name)
    return known


FUNCTIONS = (
    connect,
    read,
    variable,
    write,
    import_module,
    leave_temporary_file,
    echo,
    memory,
    pid,
    wait,
    count,
    refuse,
    refuse_shortly,
    fail,
    leave,
    crash,
    be_killed,
    be_killed_by_task,
    tell_process,
    be_killed_in_the_middle_of_an_answer,
    answer_with_what_is_no_json,
    limit_memory,
    join,
    fill_memory,
    allocate_in_torch,
    allocate_in_cpp,
)


def functions() -> dict[str, Callable[..., Any]]:
    return {function.__name__: function for function in FUNCTIONS}


if __name__ == "__main__":
    serve(functions(), int(sys.argv[1]))
