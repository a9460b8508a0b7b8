"""What a team runs: PostgreSQL, a Prefect server with login and CSRF protection, three process workers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ..cli.command import CommandLine
from ..waiting import LONGEST_SECONDS, wait_until
from . import postgres, prefect_server, workers
from .postgres import Postgres
from .prefect_server import PrefectServer
from .workers import PoolWorker

POOL = "team"
HEARTBEAT_SECONDS, SILENT_SECONDS, BEGUN_SECONDS = 30, 60, 120

FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


@dataclass(frozen=True)
class Team:
    """All of it, with the flows deployed on the pool of the workers."""

    database: Postgres
    server: PrefectServer
    workers: list[PoolWorker]
    folder: Path

    def deploy(self) -> None:
        """Deploy again; this finds the runs that the server has lost sight of, too."""
        _deploy(self.server, self.folder)

    def submit(self, spec: Mapping[str, Any], folder: Path, **job_variables: Any) -> str:
        """Ask for a compile: the run."""
        return self.start("compile-model", {"spec": spec, "folder": str(folder)}, **job_variables)

    def start(self, flow: str, parameters: Mapping[str, Any], *, state: str = "SCHEDULED", **job_variables: Any) -> str:
        """Ask for a run of a flow: the run; in another state no worker takes it up."""
        names = {"flows": {"name": {"any_": [flow]}}, "deployments": {"name": {"any_": [POOL]}}}
        (deployment,) = self.server.ask("deployments/filter", **names)
        body = {"parameters": parameters, "job_variables": job_variables, "state": {"type": state}}
        return str(self.server.ask(f"deployments/{deployment['id']}/create_flow_run", **body)["id"])

    def run(self, run: str) -> dict[str, Any]:
        """What the server knows of a run."""
        (flow_run,) = self.server.ask("flow_runs/filter", flow_runs={"id": {"any_": [run]}})
        assert isinstance(flow_run, dict)
        return flow_run

    def ended(self, run: str, seconds: float = LONGEST_SECONDS) -> str:
        """Wait for the end of a run: its state."""
        wait_until(lambda: self.run(run)["state"]["type"] in FINAL, lambda: str(self.run(run)["state"]), seconds)
        return str(self.run(run)["state"]["type"])

    def worker_of(self, run: str) -> PoolWorker:
        """The worker that took a run up; waits until there is one and its process compiles."""
        matches: list[PoolWorker] = []

        def is_compiling() -> bool:
            matches[:] = [worker for worker in self.workers if run in worker.run_ids(run_in_worker=True)]
            return bool(matches)

        wait_until(is_compiling, lambda: str(self.run(run)["state"]))
        return matches[0]

    def story(self, run: str) -> str:
        """How a run ended, and what it logged."""
        return "\n".join([str(self.run(run)["state"]), *self.server.logs_of(run)])

    def mend(self) -> None:
        """Start the workers that have ended, as what looks after them on a machine would."""
        for worker in self.workers:
            if not worker.program.is_running:
                worker.start()


@contextmanager
def running(folder: Path) -> Iterator[Team]:
    """A team, for the length of a block."""
    with (
        postgres.running() as database,
        prefect_server.running(folder, database.url, csrf=True) as server,
    ):
        _write_service(folder)
        _deploy(server, folder)
        with workers.running(server, POOL, folder, limit=2) as started:
            yield Team(database, server, started, folder)


@pytest.fixture(scope="session")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    """PostgreSQL, a Prefect server with CSRF protection, three workers."""
    with running(tmp_path_factory.mktemp("team")) as started:
        yield started


def _deploy(server: PrefectServer, folder: Path) -> None:
    """What a team types: the pool, the deployments and the automations of its service."""
    answer = CommandLine(folder)("flows", "deploy", "--config", "service.yaml", **server.variables())
    assert answer.status == 0, answer


def _write_service(folder: Path) -> None:
    service = {
        "directory": str(folder),
        "specs": [str(folder / "specs")],
        "pools": {POOL: {"type": "process", "create": True}},
        "heartbeat_seconds": HEARTBEAT_SECONDS,
        "crashed_after_seconds": SILENT_SECONDS,
        "begun_after_seconds": BEGUN_SECONDS,
    }
    (folder / "specs").mkdir()
    (folder / "service.yaml").write_text(json.dumps(service))  # which is YAML, too
