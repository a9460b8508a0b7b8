"""A cancelled run ends its heavy child and its Triton within ten seconds and leaves nothing half-made."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from ..cli.command import COMMAND, CommandLine, environment
from .prefect_server import PrefectServer

pytestmark = pytest.mark.services

_MARK = "FLOW_TEST_MARK"
_ENDED_SECONDS = 30
"""What takes ten at most on a machine that has nothing else to do."""

_DEADLINE_SECONDS = 120


def _export_writes(folder: Path) -> bool:
    return any(folder.glob("artifacts/cache/staging/*/*"))


def _triton_runs(folder: Path) -> bool:
    return any(log.stat().st_size for log in folder.glob("artifacts/logs/*-triton.log"))


def test_a_compile_that_is_cancelled_while_triton_runs_ends_that_too(
    prefect: PrefectServer, run: CommandLine, bert: Path
) -> None:
    mark, name = uuid.uuid4().hex, "in-triton"
    words = ["compile", f"hf:{bert}", "--name", name]
    process = subprocess.Popen(
        [*COMMAND, *words, "--track"],
        cwd=run.folder,
        env=environment(**prefect.variables(), **{_MARK: mark}),
        stderr=subprocess.PIPE,
        text=True,
    )
    _wait_until(lambda: _triton_runs(run.folder), _DEADLINE_SECONDS)
    prefect.cancel(prefect.run_named(f"{name} for local-cpu")["id"])
    _wait_until(lambda: not _heavy_processes(mark), _ENDED_SECONDS)
    stderr = process.communicate(timeout=_DEADLINE_SECONDS)[1]
    assert process.returncode == 130
    assert "cancelled through Prefect" in stderr
    assert "Traceback" not in stderr
    assert prefect.run_named(f"{name} for local-cpu")["state"]["type"] == "CANCELLED"
    assert not _processes(mark)
    _check_nothing_half_made(run.folder)
    again = run(*words, "--no-check-served")
    assert again.status == 0, again


def test_a_run_that_a_deployment_started_is_cancelled_through_the_api(
    prefect: PrefectServer, run: CommandLine, bert: Path
) -> None:
    mark = uuid.uuid4().hex
    serving = (
        "from prefect.deployments.runner import EntrypointType\n"
        "from plansmith.flows.compile_model import compile_model\n"
        "compile_model.serve('cancelled', entrypoint_type=EntrypointType.MODULE_PATH, print_starting_message=False)\n"
    )
    variables = {**prefect.variables(), _MARK: mark, "PREFECT_RUNNER_POLL_FREQUENCY": "1"}
    with (run.folder / "serve.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-c", serving], cwd=run.folder, env=environment(**variables), stdout=log, stderr=log
        )
    try:
        deployment = _deployment(prefect, run.folder / "serve.log")
        spec = {"source": f"hf:{bert}", "name": "deployed", "artifacts": str(run.folder / "artifacts")}
        prefect.ask(
            f"deployments/{deployment}/create_flow_run",
            parameters={"spec": spec, "folder": str(run.folder)},
            state={"type": "SCHEDULED"},
        )
        _wait_until(lambda: _export_writes(run.folder), _DEADLINE_SECONDS)
        _halt(mark)
        run_id = prefect.run_named("deployed for local-cpu")["id"]
        prefect.cancel(run_id)
        _wait_until(lambda: not _heavy_processes(mark), _ENDED_SECONDS)
        _wait_until(lambda: _state(prefect, run_id) == "CANCELLED", _DEADLINE_SECONDS)
    finally:
        server.terminate()
        server.wait(60)
    _wait_until(lambda: not _processes(mark), _ENDED_SECONDS)
    _check_nothing_half_made(run.folder)


def _check_nothing_half_made(folder: Path) -> None:
    assert not list(folder.glob("artifacts/repository.plansmith/releases/*"))
    assert not [path for path in folder.glob("artifacts/**/staging/*") if path.name != ".lock"]


def _deployment(prefect: PrefectServer, log: Path) -> str:
    found: list[Any] = []

    def is_there() -> bool:
        found[:] = prefect.ask("deployments/filter", deployments={"name": {"any_": ["cancelled"]}})
        return bool(found)

    _wait_until(is_there, _DEADLINE_SECONDS, log.read_text)
    return str(found[0]["id"])


def _state(prefect: PrefectServer, run: str) -> str:
    (found,) = prefect.ask("flow_runs/filter", flow_runs={"id": {"any_": [run]}})
    return str(found["state"]["type"])


def _heavy_processes(mark: str) -> list[psutil.Process]:
    heavy = ("plansmith.steps.worker", "tritonserver", "triton_python_backend_stub")
    return [process for process in _processes(mark) if any(word in " ".join(_words(process)) for word in heavy)]


def _halt(mark: str) -> None:
    """Stop what compiles, so that it is still at work when it is cancelled."""
    heavy = _heavy_processes(mark)
    assert heavy
    for process in heavy:
        process.suspend()


def _processes(mark: str) -> list[psutil.Process]:
    """The processes that inherited this environment and still run."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(_MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []


def _wait_until(happened: Callable[[], bool], seconds: float, told: Callable[[], str] = lambda: "") -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, told() or "it did not happen"
        time.sleep(0.05)
