"""A cancelled run ends its worker and its Triton within ten seconds and leaves nothing half-made."""

from __future__ import annotations

import subprocess
import uuid
from pathlib import Path

import psutil
import pytest

from ...support.cli.command import COMMAND, CommandLine, environment
from ...support.prefect.prefect_server import PrefectServer
from ...support.waiting import wait_until

pytestmark = pytest.mark.services

_MARK = "FLOW_TEST_MARK"
_ENDED_SECONDS = 30
"""What takes ten at most on a machine that has nothing else to do."""

_DEADLINE_SECONDS = 120


def _triton_runs(folder: Path) -> bool:
    return any(log.stat().st_size for log in folder.glob("artifacts/logs/*-triton.log"))


def test_cancelled_compile_ends_triton(prefect: PrefectServer, run: CommandLine, tiny: str) -> None:
    """A compile that is cancelled while Triton runs ends that too."""
    mark, name = uuid.uuid4().hex, "in-triton"
    command = ["compile", tiny, "--name", name]
    process = subprocess.Popen(
        [*COMMAND, *command, "--track"],
        cwd=run.folder,
        env=environment(**prefect.variables(), **{_MARK: mark}),
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: _triton_runs(run.folder))
    prefect.cancel(prefect.run_named(f"{name} for local-cpu")["id"])
    wait_until(lambda: not _heavy_processes(mark), seconds=_ENDED_SECONDS)
    stderr = process.communicate(timeout=_DEADLINE_SECONDS)[1]
    assert process.returncode == 130
    assert "cancelled through Prefect" in stderr
    assert "Traceback" not in stderr
    assert prefect.run_named(f"{name} for local-cpu")["state"]["type"] == "CANCELLED"
    assert not _processes(mark)
    _check_nothing_half_made(run.folder)
    again = run(*command, "--no-check-served")
    assert again.status == 0, again


def _check_nothing_half_made(folder: Path) -> None:
    assert not list(folder.glob("artifacts/repository.plansmith/releases/*"))
    assert not [path for path in folder.glob("artifacts/**/staging/*") if path.name != ".lock"]


def _heavy_processes(mark: str) -> list[psutil.Process]:
    run_in_worker = ("plansmith.steps.worker", "tritonserver", "triton_python_backend_stub")
    return [
        process
        for process in _processes(mark)
        if any(word in " ".join(_command_line(process)) for word in run_in_worker)
    ]


def _processes(mark: str) -> list[psutil.Process]:
    """The processes that inherited this environment and still run."""
    processes = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(_MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return processes


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []
