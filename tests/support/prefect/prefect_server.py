"""A real Prefect server on 127.0.0.1 with a database and a home of its own, and what its API says."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from plansmith.system.files import locked

from ..waiting import soon
from .programs import Program, free_port, own_environment

USER, PASSWORD = "admin", "a pass:word"
LOGIN = f"{USER}:{PASSWORD}"
_START_SECONDS = 180
_BUSY_ATTEMPTS, _BUSY_SECONDS = 20, 1.0


@dataclass(frozen=True)
class PrefectServer:
    """Where a server answers, and how a client is told so.

    Args:
        port: of its API.
        home: PREFECT_HOME of its clients.
        program: the server itself.
        csrf: it wants a token with whatever changes something.
    """

    port: int
    home: Path
    program: Program
    csrf: bool = False

    def start(self) -> None:
        """Start it, or start it again after it was killed."""
        self.program.start(partial(_is_healthy, self.port), _START_SECONDS)

    def kill(self) -> None:
        """SIGKILL; its address and its database stay."""
        self.program.kill_all()

    def variables(self, *, port: int = 0, login: str = LOGIN) -> dict[str, str]:
        """The environment of a client; `port` where it reaches the API by another way."""
        return {
            "PREFECT_HOME": str(self.home),
            "PREFECT_API_URL": f"http://127.0.0.1:{port or self.port}/api",
            "PREFECT_API_AUTH_STRING": login,
            "DO_NOT_TRACK": "1",
        }

    def ask(self, path: str, body: Any = None, /, **fields: Any) -> Any:
        """POST fields, or a body of another form, to the API and read its JSON answer; None where it says nothing.

        A server whose SQLite is being written to by another request answers 503 and has done nothing; its own clients
        ask again, too.
        """
        for _ in range(_BUSY_ATTEMPTS):
            answer = self._client.post(path, json=fields if body is None else body, headers=self._token)
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                break
            time.sleep(_BUSY_SECONDS)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    @cached_property
    def _client(self) -> httpx.Client:
        """One that keeps no connection: the server may be killed, and started again."""
        return httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}/api",
            auth=(USER, PASSWORD),
            timeout=30,
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    @cached_property
    def _token(self) -> dict[str, str]:
        """What shows that a request comes from who asked for it; its name has one token at a time."""
        if not self.csrf:
            return {}
        name = uuid.uuid4().hex
        token = self._client.get("csrf-token", params={"client": name}).raise_for_status().json()["token"]
        return {"Prefect-Csrf-Token": token, "Prefect-Csrf-Client": name}

    def run_named(self, name: str) -> dict[str, Any]:
        """The flow run of a name; there must be one alone."""
        (run,) = self.ask("flow_runs/filter", flow_runs={"name": {"any_": [name]}})
        assert isinstance(run, dict)
        return run

    def tasks_of(self, run: str, count: int) -> list[dict[str, Any]]:
        """So many task runs of a flow run as they were started; they reach the server a moment after they end."""
        tasks: list[dict[str, Any]] = []

        def ended() -> int:
            tasks[:] = self.ask("task_runs/filter", flow_runs={"id": {"any_": [run]}})
            return sum(task["state"]["type"] not in {"PENDING", "RUNNING"} for task in tasks)

        soon(ended, count)
        return sorted(tasks, key=lambda task: str(task["start_time"]))

    def artifacts_of(self, run: str) -> dict[str, dict[str, Any]]:
        """The artifacts of a flow run by key."""
        rows = self.ask("artifacts/filter", artifacts={"flow_run_id": {"any_": [run]}})
        return {artifact["key"]: artifact for artifact in rows if artifact["key"]}

    def logs_of(self, run: str) -> list[str]:
        """What a flow run and its tasks logged, in turn."""
        filters = {"logs": {"flow_run_id": {"any_": [run]}}, "sort": "TIMESTAMP_ASC"}
        return [log["message"] for log in self.ask("logs/filter", **filters)]

    def cancel(self, run: str) -> None:
        """What the button in Prefect's pages does."""
        self.ask(f"flow_runs/{run}/set_state", state={"type": "CANCELLING"})


@contextmanager
def running(folder: Path, database: str | Path, *, csrf: bool = False, **settings: str) -> Iterator[PrefectServer]:
    """The server, for the length of a block.

    Args:
        folder: for its log, its home and that of its clients.
        database: the URL of a PostgreSQL, or a file of SQLite that it gets a copy of.
        csrf: it wants a token with whatever changes something.
        settings: more of its environment.
    """
    port = free_port()
    environment = own_environment(
        PREFECT_HOME=str(folder / "server"),
        PREFECT_SERVER_API_AUTH_STRING=LOGIN,
        PREFECT_SERVER_UI_API_URL=f"http://127.0.0.1:{port}/api",
        PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED=str(csrf).lower(),
        **({"PREFECT_SERVER_DATABASE_CONNECTION_URL": database} if isinstance(database, str) else {}),
        **settings,
    )
    if isinstance(database, Path):
        (folder / "server").mkdir()
        shutil.copy(database, folder / "server" / database.name)
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    program = Program(command, folder / "server.log", environment)
    server = PrefectServer(port, folder / "client", program, csrf)
    try:
        server.start()
        yield server
    finally:
        program.stop()


@pytest.fixture(scope="session")
def prefect_database(shared_folder: Path) -> Path:
    """The file of an empty database: to make its tables takes a server half of its start."""
    home = shared_folder / "prefect"
    file = home / "prefect.db"
    with locked(shared_folder / "prefect.lock"):
        if not file.is_file():
            command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"]
            (home / "new").mkdir(parents=True, exist_ok=True)
            environment = own_environment(PREFECT_HOME=str(home / "new"))
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            with closing(sqlite3.connect(home / "new" / "prefect.db")) as database:
                database.execute("VACUUM INTO ?", [str(file.with_suffix(".new"))])
            file.with_suffix(".new").rename(file)
    return file


@pytest.fixture(scope="session")
def prefect(prefect_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """A Prefect server that asks for a login."""
    with running(tmp_path_factory.mktemp("prefect"), prefect_database) as server:
        yield server


def _is_healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/api/health", timeout=2).is_success
    except httpx.HTTPError:
        return False
