"""The process of trtexec: heard line by line, ended at its deadline, taken along by whatever ends us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from plansmith.compilers.trt.trtexec import building
from plansmith.compilers.trt.trtexec.building import run
from plansmith.errors import EnvironmentFault

from ....support.tensorrt.processes import is_gone, is_there


@pytest.mark.slow
def test_overdue_program_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that does not heed its deadline is killed."""
    monkeypatch.setattr(building, "_TERMINATE_SECONDS", 0.3)
    script = "trap '' TERM; echo $$; while :; do sleep 0.05; done"
    lines: list[str] = []
    ended = run(["/bin/sh", "-c", script], dict(os.environ), deadline_seconds=2, on_line=lines.append)
    assert ended.status is None
    assert is_gone(int(lines[0]))


def test_started_processes_end_with_program() -> None:
    """What the program started ends with it."""
    lines: list[str] = []
    script = "sleep 600 & echo $!; exit 3"
    ended = run(["/bin/sh", "-c", script], dict(os.environ), deadline_seconds=60, on_line=lines.append)
    assert ended.status == 3
    assert is_gone(int(lines[0]))


def test_interrupt_takes_program_along() -> None:
    """An interruption takes the program along."""
    lines: list[str] = []

    def interrupt(line: str) -> None:
        lines.append(line)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(["/bin/sh", "-c", "echo $$; exec sleep 600"], dict(os.environ), deadline_seconds=60, on_line=interrupt)
    assert is_gone(int(lines[0]))


_OURS = """\
import os
from plansmith.compilers.trt.trtexec.building import run
run(["/bin/sh", "-c", "echo $$; exec sleep 600"], dict(os.environ), deadline_seconds=60,
    on_line=lambda line: print(line, flush=True))
"""


def test_parent_death_takes_program_along() -> None:
    """Our death takes the program along."""
    with subprocess.Popen([sys.executable, "-c", _OURS], stdout=subprocess.PIPE, text=True) as ours:
        assert ours.stdout is not None
        program = int(ours.stdout.readline())
        assert is_there(program)
        ours.send_signal(signal.SIGKILL)
        ours.wait()
    assert is_gone(program)


def test_inherited_lock_held_by_program() -> None:
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


def test_lines_come_whole() -> None:
    """Lines come whole, also without an end and in any bytes."""
    lines: list[str] = []
    script = r"printf 'one\ntw'; sleep 0.1; printf 'o\r\n\377\nend'"
    ended = run(["/bin/sh", "-c", script], dict(os.environ), deadline_seconds=60, on_line=lines.append)
    assert lines == ["one", "two", "�", "end"]
    assert ended.text == "\n".join(lines)
    assert ended.peak_bytes > 0


def test_unstartable_program_is_said(tmp_path: Path) -> None:
    """A program that cannot be started is said."""
    with pytest.raises(EnvironmentFault, match="cannot be run") as refused:
        run([str(tmp_path / "none")], {}, deadline_seconds=1, on_line=print)
    assert "--builder api" in refused.value.remedy
