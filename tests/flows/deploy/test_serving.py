"""`plansmith flows serve`: all flows in one process, whose runs end with it and say so."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from plansmith.flows.deploy.deploying import SLUG

from ...support.cli.command import COMMAND, CommandLine
from ...support.prefect.compiled import small_spec
from ...support.prefect.programs import own_environment
from ...support.prefect.service import Service
from ...support.prefect.workers import words_of
from ...support.waiting import wait_until

pytestmark = pytest.mark.slow

_POLL_SECONDS = 2

FLOWS = {"compile-model", "compile-fleet", "refresh", "verify", "collect"}


def test_dry_run_lists_served_deployments(run: CommandLine) -> None:
    """A dry run lists what would be served and asks no server."""
    text = 'specs: [specs]\npools: {a: {}}\nflows: {refresh: {schedules: {nightly: {cron: "0 3 * * *"}}}}\n'
    (run.folder / "service.yaml").write_text(text)
    answer = run("flows", "serve", "--config", "service.yaml", "--dry-run", PREFECT_API_URL="http://127.0.0.1:9/api")
    assert answer.status == 0, answer
    lines = [line.split() for line in answer.stdout.splitlines()]
    assert {row[0] for row in lines[1:6]} == {f"{flow}/served" for flow in FLOWS}
    assert any(row[:7] == ["refresh/served", "nightly", "0", "3", "*", "*", "*"] for row in lines)
    assert f"would run in {run.folder}" in answer.stdout


@pytest.mark.services
@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGKILL])
def test_runs_end_with_serving_process(signal_number: signal.Signals, served: Service, tmp_path: Path) -> None:
    """Runs end with the process that serves them and say so."""
    log = tmp_path / "log"
    with _serving(served, log) as (program, serving):
        run = _start(served, small_spec(tmp_path, held=True), tmp_path)
        wait_until(lambda: _carries_out(serving), log.read_text)
        wait_until(lambda: _state_of(served, run) == "RUNNING", log.read_text)
        started = serving.children(recursive=True)
        program.send_signal(signal_number)
        is_asked = signal_number == signal.SIGTERM
        assert program.wait(60) == (128 + signal_number if is_asked else -signal_number)
        if is_asked:
            assert not any(map(_lives, started))
            assert _deployment(served, "compile-model")["paused"], "a schedule that nobody serves makes late runs"
        wait_until(
            lambda: not any(map(_lives, started)), lambda: str([process for process in started if _lives(process)])
        )
    assert _state_of(served, run) == "CRASHED"


@pytest.mark.services
def test_serving_outlives_its_server(served: Service, tmp_path: Path) -> None:
    """Serving outlives its server and keeps to its file."""
    log = tmp_path / "log"
    with _serving(served, log) as (program, serving):
        wait_until(lambda: bool(_deployment(served, "refresh")["status"] == "READY"), log.read_text)
        slugs = [schedule["slug"] for schedule in _deployment(served, "refresh")["schedules"]]
        assert slugs == [f"{SLUG}nightly"]
        served.server.kill()
        wait_until(lambda: "the Prefect server is away" in log.read_text(), log.read_text)
        time.sleep(4 * _POLL_SECONDS)  # Prefect's own runner gives up at the third question
        served.server.start()
        wait_until(lambda: "the Prefect server is there again" in log.read_text(), log.read_text)
        run = _start(served, small_spec(tmp_path, held=True), tmp_path)
        wait_until(lambda: _carries_out(serving), log.read_text)
        served.server.cancel(run)
        wait_until(lambda: _state_of(served, run) == "CANCELLED", log.read_text)
        program.terminate()
        assert program.wait(60) == 128 + signal.SIGTERM
    del served.values["flows"]
    with _serving(served, tmp_path / "again") as (program, _):
        assert not _deployment(served, "refresh")["schedules"]
        program.terminate()
        program.wait(60)
    second_service = Service(served.server, tmp_path, f"{served.name}-other")
    refused = subprocess.run(
        _command(second_service), env=_variables(second_service), capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2, refused
    assert f"belongs to the service '{served.name}'" in refused.stderr
    assert "serve it on a Prefect server of its own" in refused.stderr


@pytest.mark.services
def test_due_work_starts_by_itself(served: Service, tmp_path: Path) -> None:
    """What is due starts by itself, and an interrupt ends it cleanly."""
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "tiny.yaml").write_text(json.dumps(small_spec(tmp_path)))  # which is YAML, too
    served.values["flows"] = {
        "collect": {"parameters": {"dry_run": True}, "schedules": {"minutely": {"cron": "* * * * *"}}}
    }
    log = tmp_path / "log"
    with _serving(served, log) as (program, _):
        again = subprocess.run(_command(served), env=_variables(served), capture_output=True, text=True, check=False)
        assert (again.returncode, f"process of this machine ({program.pid})" in again.stderr) == (2, True), again
        wait_until(lambda: "COMPLETED" in _scheduled(served), lambda: f"{_scheduled(served)}, {log.read_text()}")
        program.send_signal(signal.SIGINT)
        assert program.wait(60) == 0
    assert "schedules are paused until it is served again" in log.read_text()
    assert "Can't evaluate" not in (served.server.home.parent / "server.log").read_text(), "SQLAlchemy is too new"


@pytest.fixture
def served(service: Service) -> Iterator[Service]:
    """A service whose deployments go after the test: all services that are served on a server share their names."""
    yield service
    for deployment in service.server.ask("deployments/filter", deployments={"name": {"any_": ["served"]}}):
        with service.client() as client:
            client.delete_deployment(deployment["id"])


@contextmanager
def _serving(service: Service, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], psutil.Process]]:
    """`plansmith flows serve`, once it serves; it has ended after the block."""
    with (
        log.open("wb") as output,
        subprocess.Popen(
            _command(service), env=_variables(service), stdout=output, stderr=output, start_new_session=True
        ) as program,
    ):
        try:
            wait_until(lambda: "Ctrl-C ends it" in log.read_text(), log.read_text)
            yield program, psutil.Process(program.pid)
        finally:
            program.kill()


def _lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _carries_out(serving: psutil.Process) -> bool:
    """Whether it has a child that is a run."""
    return any("prefect.engine" in words_of(child) for child in serving.children())


def _command(service: Service) -> list[str]:
    return [*COMMAND, "flows", "serve", "--config", str(service.write())]


def _variables(service: Service) -> dict[str, str]:
    return own_environment(**service.server.variables(), PREFECT_RUNNER_POLL_FREQUENCY=str(_POLL_SECONDS))


def _scheduled(service: Service) -> list[str]:
    """The states of the runs of collect that nobody asked for."""
    deployment = {"deployments": {"id": {"any_": [_deployment(service, "collect")["id"]]}}}
    return [
        run["state"]["type"] for run in service.server.ask("flow_runs/filter", **deployment) if run["auto_scheduled"]
    ]


def _start(service: Service, spec: dict[str, Any], folder: Path) -> str:
    """A run of compile-model that is due."""
    body = {"parameters": {"spec": spec, "folder": str(folder)}, "state": {"type": "SCHEDULED"}}
    deployment = _deployment(service, "compile-model")["id"]
    return str(service.server.ask(f"deployments/{deployment}/create_flow_run", **body)["id"])


def _state_of(service: Service, run: str) -> str:
    (flow_run,) = service.server.ask("flow_runs/filter", flow_runs={"id": {"any_": [run]}})
    return str(flow_run["state"]["type"])


def _deployment(service: Service, flow: str) -> dict[str, Any]:
    names = {"flows": {"name": {"any_": [flow]}}, "deployments": {"name": {"any_": ["served"]}}}
    (deployment,) = service.server.ask("deployments/filter", **names)
    assert isinstance(deployment, dict)
    return deployment
