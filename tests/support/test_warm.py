"""A command that is a fork of a warm process is not told from one that starts an interpreter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ..cli.command import environment
from . import warm


@pytest.mark.parametrize(
    "words", [("targets", "local-cpu"), ("compile", "hf:nope", "--json"), ("compiel",)], ids=lambda words: words[0]
)
def test_it_answers_as_one_of_its_own_does(words: tuple[str, ...], tmp_path: Path) -> None:
    said = []
    for fresh in (False, True):
        folder = tmp_path / f"{fresh}"
        folder.mkdir()
        done = warm.run([*warm.COMMAND, *words], cwd=folder, env=environment(COLUMNS="40"), fresh=fresh)
        made = sorted(path.name for path in folder.iterdir())
        said.append((done.returncode, done.stdout, done.stderr, made))
    assert said[0] == said[1]


@pytest.fixture
def waiting(tmp_path: Path) -> tuple[str, ...]:
    """A command that reads a spec which nobody writes."""
    os.mkfifo(tmp_path / "spec.yaml")
    return (*warm.COMMAND, "compile", "spec.yaml")


def test_it_runs_until_it_is_killed(waiting: tuple[str, ...], tmp_path: Path) -> None:
    with warm.Popen(waiting, cwd=tmp_path) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.1)
        assert process.poll() is None
        process.kill()
        assert process.wait(timeout=60) == -signal.SIGKILL
    assert not Path(f"/proc/{process.pid}").exists()


@pytest.mark.parametrize(
    ("variables", "forked"),
    [({}, True), ({"PLANSMITH_SERVE_ENV": "x"}, True), ({"PYTHONWARNINGS": "ignore"}, False)],
    ids=["none", "one of a command", "one of the interpreter"],
)
def test_variables_that_are_read_when_an_interpreter_starts_start_one(
    variables: dict[str, str], forked: bool, waiting: tuple[str, ...], tmp_path: Path
) -> None:
    assert (parent_of(waiting, tmp_path, **variables) != os.getpid()) == forked


def test_all_processes_of_a_test_run_share_one(
    waiting: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = parent_of(waiting, tmp_path)
    another = warm._Warm()
    monkeypatch.setattr(warm, "_warm", lambda: another)
    assert parent_of(waiting, tmp_path) == parent


def test_who_has_started_the_warm_process_ends_before_it_without_a_word(tmp_path: Path) -> None:
    command = "[*warm.COMMAND, '--version']"
    script = f"from tests.support import warm; print(warm.run({command}, cwd={str(tmp_path)!r}).returncode)"
    done = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", script],
        cwd=Path(__file__).parents[2],
        env=environment(PYTEST_XDIST_TESTRUNUID="of its own"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


def parent_of(command: tuple[str, ...], folder: Path, **variables: str) -> int:
    """The process that started a command, which is then killed."""
    with warm.Popen(command, cwd=folder, env=environment(**variables)) as process:
        found = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1]
        process.kill()
    return int(found)


def test_a_fork_tidies_up_what_is_its_own_and_nothing_of_what_it_is_a_fork_of(tmp_path: Path) -> None:
    kept, removed = tmp_path / "kept", tmp_path / "removed"
    for folder in (kept, removed):
        folder.mkdir()
    script = (
        "import os, pathlib, sys, types, weakref\n"
        "from tests.support import warm_server\n"
        "class Thing: pass\n"
        "theirs, ours = Thing(), Thing()\n"
        f"weakref.finalize(theirs, os.rmdir, {str(kept)!r})\n"
        "def command(*_, **__): weakref.finalize(ours, os.rmdir, sys.argv[1])\n"
        "warm_server.runpy = types.SimpleNamespace(run_module=command)\n"
        "child = os.fork()\n"
        f"child or warm_server.become('plansmith', [{str(removed)!r}], '/', os.environ, (0, 1, 2))\n"
        "status = os.waitpid(child, 0)[1]\n"
        "os._exit(os.waitstatus_to_exitcode(status))\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2], check=True)
    assert (kept.exists(), removed.exists()) == (True, False)
