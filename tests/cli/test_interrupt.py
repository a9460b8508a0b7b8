"""Ctrl-C ends everything at once, leaves nothing half-made, and the same command goes on afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from ..support.cli.command import COMMAND, CommandLine, check_nothing_made, environment

pytestmark = pytest.mark.slow

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


def test_an_interrupt_while_the_worker_starts_leaves_nothing(run: CommandLine, models: Path) -> None:
    def worker_began(folder: Path) -> bool:
        return any(folder.glob("artifacts/logs/*-worker.log"))

    words = ["compile", f"hf:{models / 'bert'}", "--no-check-served"]
    status, said, left = interrupt(words, run.folder, worker_began)
    assert status == 130
    assert said.splitlines()[-1].startswith("plansmith: interrupted; run the same command again")
    assert "Traceback" not in said
    assert not left
    check_nothing_made(run.folder)


def test_an_interrupt_during_export_leaves_nothing_and_the_same_command_then_succeeds(
    run: CommandLine, models: Path
) -> None:
    def export_writes(folder: Path) -> bool:
        return any(folder.glob("artifacts/cache/staging/*/*"))

    words = ["compile", f"hf:{models / 'bert'}", "--no-check-served"]
    status, said, left = interrupt(words, run.folder, export_writes)
    assert status == 130
    assert "Traceback" not in said
    assert not left
    check_nothing_made(run.folder)
    assert not list(run.folder.glob("artifacts/cache/export/*"))
    answer = run(*words)
    assert answer.status == 0, answer
    assert "bert published, version 1" in answer.stdout


def test_an_interrupt_stops_all_models_of_a_spec(run: CommandLine, models: Path) -> None:
    listed = "".join(f"  - {{source: hf:{models / 'bert'}, name: {name}}}\n" for name in ("first", "second"))
    (run.folder / "models.yaml").write_text(f"models:\n{listed}")

    def worker_began(folder: Path) -> bool:
        return any(folder.glob("artifacts/logs/*-worker.log"))

    status, said, left = interrupt(["compile", "models.yaml", "--no-check-served"], run.folder, worker_began)
    assert status == 130
    assert said.splitlines()[0] == "first (1 of 2)"
    assert said.splitlines()[-1].startswith("plansmith: interrupted; run the same command again")
    assert "second" not in said
    assert not left
    check_nothing_made(run.folder)


def _processes_with(mark: str) -> list[int]:
    """The processes that inherited this environment and still run."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(_MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found
