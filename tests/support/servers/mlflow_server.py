"""A real MLflow server on 127.0.0.1 (make .venv/.mlflow), and models that MLflow itself logs."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..prefect.programs import Program, free_port, own_environment

_ENVIRONMENT = Path(sys.prefix) / "mlflow" / "bin"
_START_SECONDS = 120
_LOGGING = Path(__file__).with_name("logging_models.py")


@dataclass(frozen=True)
class MlflowServer:
    """Where a server answers, and how its clients are told so."""

    url: str
    folder: Path

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a client."""
        return {"MLFLOW_TRACKING_URI": self.url, "MLFLOW_DISABLE_TELEMETRY": "true"}

    def post(self, path: str, **fields: Any) -> Any:
        """POST to its API, as any client may; the JSON answer, also of a refusal."""
        request = urllib.request.Request(
            f"{self.url}/api/2.0/mlflow/{path}",
            json.dumps(fields).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return json.load(error)

    def get(self, path: str, **fields: str) -> Any:
        """GET from its API; the JSON answer."""
        query = urllib.parse.urlencode(fields)
        with urllib.request.urlopen(f"{self.url}/api/2.0/mlflow/{path}?{query}", timeout=60) as answer:
            return json.load(answer)

    def log_models(self, *names: str) -> None:
        """Log and register what `logging_models.py` makes: all of it, or a version of each of these names."""
        done = subprocess.run(
            [_ENVIRONMENT / "python", _LOGGING, self.folder, *names],
            env=own_environment(**self.variables),
            capture_output=True,
            text=True,
            timeout=420,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def running(folder: Path, **settings: str) -> Iterator[MlflowServer]:
    """The server, with a database and a store of its own, for the length of a block; `settings`: of its environment."""
    assert (_ENVIRONMENT / "mlflow").is_file(), "there is no MLflow server: make .venv/.mlflow"
    port = free_port()
    server = MlflowServer(f"http://127.0.0.1:{port}", folder)
    places = [
        "--backend-store-uri",
        f"sqlite:///{folder / 'mlflow.db'}",
        "--artifacts-destination",
        str(folder / "store"),
    ]
    where = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command = [str(_ENVIRONMENT / "mlflow"), "server", *places, *where]
    # Its queue of jobs is five more processes that import all of MLflow, and nothing here uses it.
    plain = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    program = Program(command, folder / "server.log", own_environment(**plain, **settings))
    try:
        program.start(partial(_is_healthy, server.url), _START_SECONDS)
        yield server
    finally:
        program.kill_all()
        program.stop()


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
