"""Ctrl-C at a moment of a command, and what is left after it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil

from .command import COMMAND, environment

_MARK = "CLI_TEST_MARK"


_DEADLINE_SECONDS = 180


def interrupt(words: list[str], folder: Path, when: Callable[[Path], bool]) -> tuple[int, str, list[int]]:
    """Press Ctrl-C when something has happened in the folder: exit code, messages, processes that are left."""
    mark = uuid.uuid4().hex
    with (folder / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            [*COMMAND, *words],
            cwd=folder,
            env=environment(**{_MARK: mark}),
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not when(folder):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    status = process.wait(timeout=_DEADLINE_SECONDS)
    return status, (folder / "stderr").read_text(), _processes_with(mark)


def _processes_with(mark: str) -> list[int]:
    """The processes that inherited this environment and still run."""
    pids = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(_MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                pids.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return pids
