"""The process of trtexec: heard line by line, ended at its deadline, taken along by whatever ends us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from plansmith.compilers.trtexec import process
from plansmith.compilers.trtexec.process import run
from plansmith.errors import EnvironmentFault

from ....support.tensorrt.processes import is_gone, is_there


@pytest.mark.slow
def test_a_program_that_does_not_heed_its_deadline_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_TERMINATE_SECONDS", 0.3)
    script = "trap '' TERM; echo $$; while :; do sleep 0.05; done"
    said: list[str] = []
    ended = run(["/bin/sh", "-c", script], dict(os.environ), deadline_seconds=2, on_line=said.append)
    assert ended.status is None
    assert is_gone(int(said[0]))


def test_what_the_program_started_ends_with_it() -> None:
    said: list[str] = []
    script = "sleep 600 & echo $!; exit 3"
    ended = run(["/bin/sh", "-c", script], dict(os.environ), deadline_seconds=60, on_line=said.append)
    assert ended.status == 3
    assert is_gone(int(said[0]))


def test_an_interruption_takes_the_program_along() -> None:
    said: list[str] = []

    def interrupt(line: str) -> None:
        said.append(line)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(["/bin/sh", "-c", "echo $$; exec sleep 600"], dict(os.environ), deadline_seconds=60, on_line=interrupt)
    assert is_gone(int(said[0]))


_OURS = """\
import os
from plansmith.compilers.trtexec.process import run
run(["/bin/sh", "-c", "echo $$; exec sleep 600"], dict(os.environ), deadline_seconds=60,
    on_line=lambda line: print(line, flush=True))
"""


def test_our_death_takes_the_program_along() -> None:
    with subprocess.Popen([sys.executable, "-c", _OURS], stdout=subprocess.PIPE, text=True) as ours:
        assert ours.stdout is not None
        program = int(ours.stdout.readline())
        assert is_there(program)
        ours.send_signal(signal.SIGKILL)
        ours.wait()
    assert is_gone(program)


def test_what_is_held_to_be_inherited_is_held_by_the_program_too() -> None:
    """Such as the lock of the GPU, which must outlive us while the program does."""
    ours, theirs = os.pipe()
    os.set_inheritable(theirs, True)
    with os.fdopen(ours) as stream:
        run(
            ["/bin/sh", "-c", f"echo held > /proc/self/fd/{theirs}"],
            dict(os.environ),
            deadline_seconds=60,
            on_line=print,
        )
        os.close(theirs)
        assert stream.read() == "held\n"


def test_lines_come_whole_also_without_an_end_and_in_any_bytes() -> None:
    said: list[str] = []
    script = r"printf 'one\ntw'; sleep 0.1; printf 'o\r\n\377\nend'"
    ended = run(["/bin/sh", "-c", script], dict(os.environ), deadline_seconds=60, on_line=said.append)
    assert said == ["one", "two", "�", "end"]
    assert ended.text == "\n".join(said)
    assert ended.peak_bytes > 0


def test_a_program_that_cannot_be_started_is_said(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="cannot be run") as refused:
        run([str(tmp_path / "none")], {}, deadline_seconds=1, on_line=print)
    assert "--builder api" in refused.value.remedy
