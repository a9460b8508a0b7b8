"""The process of a Triton server and of the Python stubs that it starts: begun, tied to this one, ended, tidied up."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from plansmith.config.python import OWNER_FILE
from plansmith.system.process import ProcessGroup, tied_to
from plansmith.system.temporary import is_of_dead_process

_TERMINATE_SECONDS = 10
_STUB_SECONDS = 5

GRACE_SECONDS = 5
"""How long the stubs of a server have to give their shared memory back when whoever started it was killed."""

UNPACKED = Path("/tmp")  # noqa: S108 - Triton's choice (EnvironmentManager in src/pb_env.cc of its Python backend)
"""Where servers unpack the environments of Python models."""
_FOLDERS = "python_env_*"
_FILLED_SECONDS = 60


def start_server(
    command: list[str], environment: dict[str, str], log: IO[bytes], group: ProcessGroup
) -> subprocess.Popen[bytes]:
    """Start a program in a process group, so that a Ctrl-C reaches it through `end_server` only.

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
    """End the server gently, after ten seconds by force, and then what is left of its group: Python stubs."""
    server.terminate()
    try:
        server.wait(_TERMINATE_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    group.wait(_STUB_SECONDS)
    group.end()


def remove_environments(token: str) -> None:
    """Remove what a server that was ended by force left of the environments that it had unpacked."""
    for file in UNPACKED.glob(f"{_FOLDERS}/*/{OWNER_FILE}"):
        with suppress(OSError):
            if file.read_text() == token:
                shutil.rmtree(file.parents[1], ignore_errors=True)


def abandoned_environments(place: Path = UNPACKED) -> list[Path]:
    """The folders of this user's servers that are gone, sorted: those that say so, and those that nothing came into."""
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
