"""Triton server process and its Python stubs: started, bound to this process, stopped and cleaned up."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from plansmith.config.engine_options import OWNER_FILE
from plansmith.errors import EnvironmentFault
from plansmith.system.files import is_of_dead_process
from plansmith.system.process import ProcessGroup, members_of, signal_group, tied_to

_TERMINATE_SECONDS = 10
_STUB_SECONDS = 5

GRACE_SECONDS = 5
"""How long the stubs of a server have to give their shared memory back when whoever started it was killed."""

UNPACKED = Path("/tmp")  # noqa: S108 - Triton's choice (EnvironmentManager in src/pb_env.cc of its Python backend)
"""Where servers unpack the environments of Python models."""
_FOLDERS = "python_env_*"
_FILLED_SECONDS = 60

_TAIL_LINES = 8
_HARMLESS = "CudaDriverHelper has not been initialized"
_ERROR = re.compile(r"E\d{4} |error:|\[libprotobuf ERROR")
_ROW = re.compile(r"^\| (?P<model>\S+) +\| \S+ +\| (?P<why>(UNAVAILABLE|Not loaded).*?) *\|$", re.MULTILINE)
_UNREAD = re.compile(r"Poll failed for model directory '(?P<model>[^']+)': (?P<why>.*)\"$", re.MULTILINE)
_UNPARSED = re.compile(r"Error parsing text-format inference\.ModelConfig: (?P<what>.*)$", re.MULTILINE)
_POLL_SECONDS = 0.5
_PROC = Path("/proc")
_MEMORY = "smaps_rollup"


def start_server(
    command: list[str], environment: dict[str, str], log: IO[bytes], group: ProcessGroup
) -> subprocess.Popen[bytes]:
    """Start a program in its own process group, so that Ctrl-C reaches it only through `end_server`.

    The kernel ends it as soon as the calling thread ends; its stubs find that out, and give their shared memory back.
    """
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        process_group=group.number,
        preexec_fn=tied_to(os.getpid()),  # noqa: PLW1509 - only the child itself can ask for this signal
    )


def end_server(server: subprocess.Popen[bytes], group: ProcessGroup) -> None:
    """Stop the server gracefully, after ten seconds by force, then the rest of its group: Python stubs."""
    server.terminate()
    try:
        server.wait(_TERMINATE_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    group.wait(_STUB_SECONDS)
    group.end()


def remove_environments(token: str) -> None:
    """Delete the unpacked environments left by a server that was killed."""
    for file in UNPACKED.glob(f"{_FOLDERS}/*/{OWNER_FILE}"):
        with suppress(OSError):
            if file.read_text() == token:
                shutil.rmtree(file.parents[1], ignore_errors=True)


def abandoned_environments(place: Path = UNPACKED) -> list[Path]:
    """Return this user's environment folders of ended servers, sorted: those so marked, and the empty ones."""
    return sorted(folder for folder in place.glob(_FOLDERS) if _is_abandoned(folder))


def _is_abandoned(folder: Path) -> bool:
    with suppress(OSError):
        stat = folder.stat(follow_symlinks=False)
        if stat.st_uid != os.geteuid():
            return False
        owners = [file.read_text() for file in folder.glob(f"*/{OWNER_FILE}")]
        if owners:
            return all(map(is_of_dead_process, owners))
        return not any(folder.iterdir()) and time.time() - stat.st_mtime > _FILLED_SECONDS
    return False


def is_port_taken(log: Path) -> bool:
    """Whether the server's log reports that a port was already in use."""
    return re.search(r"failed to start .* already in use", _text(log)) is not None


def refused_models(log: Path) -> dict[str, str]:
    """Return why models were not loaded, by name, as far as the startup log says so.

    A configuration that Triton cannot even read appears neither in its table of models nor in its repository index.
    """
    text = _text(log)
    unread = {match["model"]: match["why"] for match in _UNREAD.finditer(text)}
    return unread | {match["model"]: match["why"] for match in _ROW.finditer(text)}


def reasons(log: Path) -> str:
    """Return the refused models from a log, otherwise its error lines, otherwise its last lines."""
    lines = [line for line in _text(log).splitlines() if line.strip()]
    refused = [f"{model}: {why}" for model, why in refused_models(log).items()]
    errors = [line for line in lines if _ERROR.match(line) and _HARMLESS not in line]
    return "\n".join(refused or (errors or lines)[-_TAIL_LINES:])


def unread_configuration(log: Path, model: str, start: int) -> str | None:
    """Return why Triton could not parse a model's configuration, from its log after a position.

    Args:
        log: the server's.
        model: its name.
        start: how many bytes of the log are from before.
    """
    text = _text(log, start)
    reasons = [match["why"] for match in _UNREAD.finditer(text) if match["model"] == model]
    if not reasons:
        return None
    details = [match["what"] for match in _UNPARSED.finditer(text)]
    return f"its configuration cannot be read: {[*reasons, *details][-1]}"


def _text(log: Path, start: int = 0) -> str:
    with log.open("rb") as stream:
        stream.seek(start)
        return stream.read().decode(errors="replace")


def is_measurable(proc: Path = _PROC) -> bool:
    """Whether the kernel reports the memory of processes; some sandboxes and kernels do not.

    Args:
        proc: where processes are described.
    """
    return _why_unmeasurable(proc / "self") is None


def group_bytes(group: int, proc: Path = _PROC) -> int:
    """Return the memory of a process group in bytes, with shared pages counted once.

    It is the sum of their proportional set sizes (Linux, Documentation/filesystems/proc.rst, smaps_rollup); a process
    that ends meanwhile counts as nothing.

    Args:
        group: the number of its first process.
        proc: where processes are described.
    """
    total = 0
    for number in members_of(group, proc):
        with suppress(OSError, ValueError, IndexError):
            rows = (proc / str(number) / _MEMORY).read_text().splitlines()
            total += sum(int(row.split()[1]) * 1024 for row in rows if row.startswith("Pss:"))
    return total


class MemoryLimit:
    """Memory limit: kills a process group that exceeds it during the block.

    Args:
        group: the number of its first process.
        most: in bytes.
        proc: where processes are described.

    Attributes:
        exceeded: what it held when it was killed for it; None while it was not.

    Raises:
        EnvironmentFault: the block is not entered, as nothing says what the process holds, and the limit would never
            act.
    """

    def __init__(self, group: int, most: int, proc: Path = _PROC) -> None:
        self.exceeded: int | None = None
        self._group, self._most, self._proc = group, most, proc
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        why = _why_unmeasurable(self._proc / str(self._group))
        if why is not None:
            raise EnvironmentFault(
                f"nothing says what Triton holds in memory, so that no limit can be kept: {why}",
                remedy="leave out --memory, or limit the container that it runs in (docker run --memory)",
            )
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(_POLL_SECONDS):
            usage = group_bytes(self._group, self._proc)
            if usage > self._most:
                self.exceeded = usage
                signal_group(self._group, signal.SIGKILL)
                return


def _why_unmeasurable(process: Path) -> str | None:
    """Why the memory of a process cannot be read; None where it can, or where the process has ended."""
    file = process / _MEMORY
    try:
        file.read_text()
    except ProcessLookupError:
        return None
    except OSError as error:
        return f"{file}: {error.strerror}" if process.exists() else None
    return None
