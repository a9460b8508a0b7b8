"""Each command with one thing wrong gives the exit code and the message that its page in the reference shows."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from plansmith.cli import cli

from .support.cli.in_process import InProcess
from .support.reference.mistakes import FOLDER, MISTAKES
from .test_documented_commands import all_commands


@pytest.mark.parametrize("command", MISTAKES)
def test_mistake_gives_its_message(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The message is the one shown, and nothing is left behind."""
    mistake = MISTAKES[command]
    answer = InProcess(tmp_path, monkeypatch, capfd)(*command.split(), *shlex.split(mistake.arguments))
    message = answer.message.replace(str(tmp_path), FOLDER).removeprefix("plansmith: ")
    assert (answer.status, message.splitlines()[0]) == (mistake.status, mistake.message)
    assert not [*tmp_path.iterdir()]


def test_every_command_has_its_mistake() -> None:
    groups = {names[:-1] for names, _ in all_commands(cli) if names}
    assert {" ".join(names) for names, _ in all_commands(cli) if names not in groups} == set(MISTAKES)
