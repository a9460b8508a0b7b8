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
def started(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A command that runs in a folder, ended at the latest here."""
    with subprocess.Popen(
        [*COMMAND, *words], cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
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


def test_of_two_compiles_of_one_spec_one_builds_and_the_other_waits_says_so_and_takes_the_result(
    run: CommandLine, models: Path
) -> None:
    words = ("compile", f"hf:{models / 'bert'}", "--name", "tiny", "--no-check-served", "--json")
    with started(run.folder, *words) as first:
        wait_for_worker(run.folder, first)
        first.send_signal(signal.SIGSTOP)
        with started(run.folder, *words) as second:
            said = line_with(second, "waiting for")
            refused = run("gc", "--no-wait", "--older-than", "0")
            first.send_signal(signal.SIGCONT)
            documents = [json.loads(process.communicate()[0]) for process in (first, second)]
    assert said.startswith("  export ")
    assert said.endswith(f"waiting for another plansmith that builds the same step (process {first.pid})\n")
    assert refused.status == 7
    assert refused.message.startswith("plansmith: a compile is using artifacts")
    assert [first.returncode, second.returncode] == [0, 0]
    assert [document["version"] for document in documents] == [1, 1]
    assert [path.name for path in run.folder.glob("artifacts/repository.plansmith/releases/tiny/*")] == ["1"]
    assert {path.name for path in run.folder.glob("artifacts/**/staging/*")} == {".lock"}
    one, other = ({step["name"]: step["cached"] for step in document["steps"]} for document in documents)
    run_in_worker = ("export", "compile", "validate", "package", "publish")
    assert not one["export"]
    assert other["export"]
    assert {step: (one[step], other[step]).count(False) for step in run_in_worker} == dict.fromkeys(run_in_worker, 1)


def test_a_compile_waits_for_a_collection_says_so_and_goes_on(finished: Compiled) -> None:
    held = ExitStack()
    held.enter_context(locked(lock_of(finished)))
    with held, started(finished.folder, *finished.command) as process:
        assert "that collects garbage (plansmith gc) (process " in line_with(process, "waiting for")
        held.close()
        assert "unchanged, still version 1" in process.communicate()[0]
    assert process.returncode == 0


def test_a_collection_waits_for_a_compile_says_so_and_goes_on(finished: Compiled) -> None:
    held = ExitStack()
    held.enter_context(locked(lock_of(finished), shared=True))
    with held, started(finished.folder, "gc") as process:
        said = line_with(process, "waiting for")
        held.close()
        assert "removed, " in process.communicate()[0]
    assert said.startswith("waiting for the end of a compile that uses artifacts (process ")
    assert process.returncode == 0


def test_a_dry_run_waits_for_a_collection_and_a_compile_does_not_keep_it_waiting(finished: Compiled) -> None:
    run = CommandLine(finished.folder)
    with locked(lock_of(finished), shared=True):
        assert run("gc", "--dry-run", "--no-wait").status == 0
    held = ExitStack()
    held.enter_context(locked(lock_of(finished)))
    with held, started(finished.folder, *finished.command, "--dry-run") as process:
        refused = run("gc", "--dry-run", "--no-wait")
        assert refused.status == 7
        assert refused.message.startswith("plansmith: another plansmith gc is using artifacts (process ")
        assert process.poll() is None
        held.close()
        process.communicate()
    assert process.returncode == 0


def test_on_a_terminal_the_moving_line_says_that_it_waits(finished: Compiled) -> None:
    ours, theirs = pty.openpty()
    held = ExitStack()
    held.enter_context(locked(lock_of(finished)))
    with (
        held,
        subprocess.Popen(
            [*COMMAND, *finished.command],
            cwd=finished.folder,
            env=environment(TERM="xterm", COLUMNS="200"),
            stdout=subprocess.DEVNULL,
            stderr=theirs,
        ) as process,
    ):
        os.close(theirs)
        said = b""
        while b"export: waiting for another plansmith that collects garbage" not in said:
            said += os.read(ours, 4096)
        held.close()
        with suppress(OSError):  # a terminal whose other side was closed
            while block := os.read(ours, 4096):
                said += block
        os.close(ours)
    assert process.returncode == 0
