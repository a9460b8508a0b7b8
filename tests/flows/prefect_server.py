"""A real Prefect server on 127.0.0.1 with a database and a home of its own, and what its API says."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

USER, PASSWORD = "admin", "a pass:word"
LOGIN = f"{USER}:{PASSWORD}"
_START_SECONDS = 180


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass(frozen=True)
class PrefectServer:
    """Where a server answers, and how a client is told so.

    Args:
        port: of its API.
        home: PREFECT_HOME of its clients.
    """

    port: int
    home: Path

    def variables(self, *, port: int = 0, login: str = LOGIN) -> dict[str, str]:
        """The environment of a client; `port` where it reaches the API by another way."""
        return {
            "PREFECT_HOME": str(self.home),
            "PREFECT_API_URL": f"http://127.0.0.1:{port or self.port}/api",
            "PREFECT_API_AUTH_STRING": login,
            "DO_NOT_TRACK": "1",
        }

    def ask(self, path: str, **fields: Any) -> Any:
        """POST to the API and read its JSON answer."""
        answer = httpx.post(f"http://127.0.0.1:{self.port}/api/{path}", json=fields, auth=(USER, PASSWORD), timeout=30)
        answer.raise_for_status()
        return answer.json()

    def run_named(self, name: str) -> dict[str, Any]:
        """The flow run of a name; there must be one alone."""
        (run,) = self.ask("flow_runs/filter", flow_runs={"name": {"any_": [name]}})
        assert isinstance(run, dict)
        return run

    def tasks_of(self, run: str) -> list[dict[str, Any]]:
        """The task runs of a flow run as they were started; they reach the server a moment after they end."""
        for _ in range(100):
            found = self.ask("task_runs/filter", flow_runs={"id": {"any_": [run]}})
            if found and all(task["state"]["type"] not in {"PENDING", "RUNNING"} for task in found):
                break
            time.sleep(0.1)
        return sorted(found, key=lambda task: str(task["start_time"]))

    def artifacts_of(self, run: str) -> dict[str, dict[str, Any]]:
        """The artifacts of a flow run by key."""
        found = self.ask("artifacts/filter", artifacts={"flow_run_id": {"any_": [run]}})
        return {artifact["key"]: artifact for artifact in found if artifact["key"]}

    def logs_of(self, run: str) -> list[str]:
        """What a flow run and its tasks logged, in turn."""
        filters = {"logs": {"flow_run_id": {"any_": [run]}}, "sort": "TIMESTAMP_ASC"}
        return [log["message"] for log in self.ask("logs/filter", **filters)]

    def cancel(self, run: str) -> None:
        """What the button in Prefect's pages does."""
        self.ask(f"flow_runs/{run}/set_state", state={"type": "CANCELLING"})


@contextmanager
def running(folder: Path) -> Iterator[PrefectServer]:
    """The server, for the length of a block."""
    server = PrefectServer(free_port(), folder / "client")
    environment = {
        **os.environ,
        "PREFECT_HOME": str(folder / "server"),
        "PREFECT_SERVER_API_AUTH_STRING": LOGIN,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(server.port)]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        _wait_until_healthy(server.port, process)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_healthy(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, "the Prefect server ended"
        try:
            if httpx.get(f"http://127.0.0.1:{port}/api/health", timeout=2).is_success:
                return
        except httpx.HTTPError:
            time.sleep(0.2)
    raise AssertionError("the Prefect server did not come up")
