"""A server that holds more memory than it may is ended with all that it started, and says so."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from plansmith.errors import EnvironmentFault
from plansmith.triton.server.installation import Installation
from plansmith.triton.server.process import MemoryLimit, group_bytes, is_measurable
from plansmith.triton.server.server import TritonServer

if TYPE_CHECKING:
    from ..conftest import Started

GROWS = """
import subprocess, sys, time
held = bytearray(int(sys.argv[1]))
if len(sys.argv) > 2:
    subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1]])
print("ready", flush=True)
time.sleep(600)
"""
MIB = 2**20


@pytest.mark.slow
def test_child_memory_counts_for_parent() -> None:
    """What a child holds counts and ends the parent too."""
    command = [sys.executable, "-c", GROWS, str(60 * MIB), GROWS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == [b"ready\n"] * 2
        parent = psutil.Process(process.pid)
        (child,) = parent.children()
        alone = parent.memory_info().rss
        assert 120 * MIB < group_bytes(process.pid) < 2 * alone + MIB
        with MemoryLimit(process.pid, 1000 * MIB) as wide:
            time.sleep(0.6)
        assert wide.exceeded is None
        assert process.poll() is None
        with MemoryLimit(process.pid, 100 * MIB) as narrow:
            assert process.wait(60) < 0
    assert narrow.exceeded is not None
    assert narrow.exceeded > 100 * MIB
    psutil.wait_procs([child], timeout=60)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_another_group_counts_for_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", GROWS, str(MIB)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert group_bytes(process.pid) == 0
        assert group_bytes(os.getpgid(process.pid)) > 10 * MIB
        process.kill()


def test_unmeasurable_limit_refused(tmp_path: Path) -> None:
    """Where nothing says what a server holds, a limit is refused rather than never kept."""
    assert is_measurable()
    own = tmp_path / "7"
    own.mkdir()
    (own / "stat").write_text("7 (tritonserver) S 1 7 7")
    (tmp_path / "self").symlink_to(own)
    assert not is_measurable(tmp_path)
    with pytest.raises(EnvironmentFault, match=r"nothing says .*: .*/7/smaps_rollup: No such file") as refused:
        MemoryLimit(7, MIB, tmp_path).__enter__()
    assert "--memory" in refused.value.remedy
    (own / "smaps_rollup").write_text("Pss:  512 kB\n")
    with MemoryLimit(7, MIB, tmp_path) as limit:
        pass
    assert limit.exceeded is None


def test_ended_process_limit_no_fault() -> None:
    """The limit of a process that has ended is no fault."""
    with subprocess.Popen([sys.executable, "-c", ""], start_new_session=True) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # nobody has taken note of its end yet
        with MemoryLimit(process.pid, MIB):
            pass
    with MemoryLimit(process.pid, MIB) as limit:
        pass
    assert limit.exceeded is None


def _ask_after_its_end(server: TritonServer) -> None:
    """As who asks a server that was ended meanwhile."""
    server.wait(60)
    raise ConnectionRefusedError


def test_server_above_limit_ended(installation: Installation, started: Started, tmp_path: Path) -> None:
    """A server above its limit is ended with one clear reason."""
    (tmp_path / "empty").mkdir()
    server = TritonServer(tmp_path / "empty", installation, tmp_path / "log", models=[], memory_bytes=2 * MIB)
    with pytest.raises(EnvironmentFault) as ended, server:
        _ask_after_its_end(server)
    assert "it held" in ended.value.message
    assert "may hold 2.0 MiB" in ended.value.message
    assert "plansmith serve --memory" in ended.value.remedy
    assert ended.value.log == tmp_path / "log"
    assert not started()
