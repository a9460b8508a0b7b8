"""A command that is a fork of a warm process is not told from one that starts an interpreter."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from . import warm
from .cli.command import environment


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
    with warm.Popen(waiting, cwd=tmp_path, env=environment(**variables)) as process:
        parent = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1])
        process.kill()
    assert (parent != os.getpid()) == forked
