"""Two compiles of one model at once, and a collection beside them: who waits says so and for whom."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from plansmith.system.files import locked

from ..support.cli.command import COMMAND, CommandLine, environment
from .conftest import Compiled

pytestmark = pytest.mark.slow


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command that runs in a folder, ended at the latest here."""
    with subprocess.Popen(
        [*COMMAND, *arguments], cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line_with(process: subprocess.Popen[str], words: str) -> str:
    """The next line on standard error that holds some words."""
    assert process.stderr is not None
    return next(line for line in process.stderr if words in line)


def wait_for_worker(folder: Path, process: subprocess.Popen[str]) -> None:
    """Until a compile has begun with its first heavy step."""
    while not list(folder.glob("artifacts/logs/*-worker.log")):
        assert process.poll() is None


def lock_of(compiled: Compiled) -> Path:
    """What every compile holds together, and a collection alone."""
    return compiled.folder / "artifacts" / "cache" / "locks" / "cache"


def test_second_compile_waits_for_result(run: CommandLine, models: Path) -> None:
    """Of two compiles of one spec, one builds; the other waits, says so and takes the result."""
    command = ("compile", f"hf:{models / 'bert'}", "--name", "tiny", "--no-check-served", "--json")
    with started(run.folder, *command) as first:
        wait_for_worker(run.folder, first)
        first.send_signal(signal.SIGSTOP)
        with started(run.folder, *command) as second:
            line = line_with(second, "waiting for")
            refused = run("gc", "--no-wait", "--older-than", "0")
            first.send_signal(signal.SIGCONT)
            documents = [json.loads(process.communicate()[0]) for process in (first, second)]
    assert line.startswith("  export ")
    assert line.endswith(f"waiting for another plansmith that builds the same step (process {first.pid})\n")
    assert refused.status == 7
    assert refused.message.startswith("plansmith: a compile is using artifacts")
    assert [first.returncode, second.returncode] == [0, 0]
    assert [document["version"] for document in documents] == [1, 1]
    assert [path.name for path in run.folder.glob("artifacts/repository.plansmith/releases/tiny/*")] == ["1"]
    assert {path.name for path in run.folder.glob("artifacts/**/staging/*")} == {".lock"}
    first_steps, second_steps = ({step["name"]: step["cached"] for step in document["steps"]} for document in documents)
    run_in_worker = ("export", "compile", "validate", "package", "publish")
    assert not first_steps["export"]
    assert second_steps["export"]
    assert {step: (first_steps[step], second_steps[step]).count(False) for step in run_in_worker} == dict.fromkeys(
        run_in_worker, 1
    )


def test_compile_waits_for_collection(finished: Compiled) -> None:
    """A compile waits for a collection, says so and goes on."""
    lock = ExitStack()
    lock.enter_context(locked(lock_of(finished)))
    with lock, started(finished.folder, *finished.command) as process:
        assert "that collects garbage (plansmith gc) (process " in line_with(process, "waiting for")
        lock.close()
        assert "unchanged, still version 1" in process.communicate()[0]
    assert process.returncode == 0


def test_collection_waits_for_compile(finished: Compiled) -> None:
    """A collection waits for a compile, says so and goes on."""
    lock = ExitStack()
    lock.enter_context(locked(lock_of(finished), shared=True))
    with lock, started(finished.folder, "gc") as process:
        line = line_with(process, "waiting for")
        lock.close()
        assert "removed, " in process.communicate()[0]
    assert line.startswith("waiting for the end of a compile that uses artifacts (process ")
    assert process.returncode == 0


def test_dry_run_waits_for_collection(finished: Compiled) -> None:
    """A dry run waits for a collection and a compile does not keep it waiting."""
    run = CommandLine(finished.folder)
    with locked(lock_of(finished), shared=True):
        assert run("gc", "--dry-run", "--no-wait").status == 0
    lock = ExitStack()
    lock.enter_context(locked(lock_of(finished)))
    with lock, started(finished.folder, *finished.command, "--dry-run") as process:
        refused = run("gc", "--dry-run", "--no-wait")
        assert refused.status == 7
        assert refused.message.startswith("plansmith: another plansmith gc is using artifacts (process ")
        assert process.poll() is None
        lock.close()
        process.communicate()
    assert process.returncode == 0


def test_terminal_line_says_waiting(finished: Compiled) -> None:
    """On a terminal, the moving line says that it waits."""
    ours, theirs = pty.openpty()
    lock = ExitStack()
    lock.enter_context(locked(lock_of(finished)))
    with (
        lock,
        subprocess.Popen(
            [*COMMAND, *finished.command],
            cwd=finished.folder,
            env=environment(TERM="xterm", COLUMNS="200"),
            stdout=subprocess.DEVNULL,
            stderr=theirs,
        ) as process,
    ):
        os.close(theirs)
        output = b""
        while b"export: waiting for another plansmith that collects garbage" not in output:
            output += os.read(ours, 4096)
        lock.close()
        with suppress(OSError):  # a terminal whose other side was closed
            while block := os.read(ours, 4096):
                output += block
        os.close(ours)
    assert process.returncode == 0
