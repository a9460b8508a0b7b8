"""A real MLflow server tells of its models, a real receiver hears it, and a real Prefect server has the runs."""

from __future__ import annotations

import base64
import secrets
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ...support.cli.command import CommandLine
from ...support.deliveries.recorded import SECRET
from ...support.prefect import workers
from ...support.prefect.prefect_server import PrefectServer
from ...support.prefect.programs import free_port
from ...support.servers import mlflow_server
from ...support.servers.mlflow_server import MlflowServer
from ...support.triggers.triggered_service import Receiver, TriggeredService
from ...support.waiting import soon

pytestmark = pytest.mark.services

FLOW = "plansmith.flows.compile_model.compile_model"
MODEL = "clf"

# Without these MLflow tells nobody on this machine. A webhook that was just made is not asked for a minute otherwise.
WEBHOOKS_HERE = {
    "MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "http,https",
    "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true",
    "MLFLOW_WEBHOOK_CACHE_TTL": "1",
}


@pytest.fixture
def mlflow(tmp_path: Path) -> Iterator[MlflowServer]:
    """A server with webhooks."""
    folder = tmp_path / "mlflow"
    folder.mkdir()
    key = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
    settings = {**WEBHOOKS_HERE, "MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY": key}
    with mlflow_server.running(folder, **settings) as started:
        yield started


def test_moved_alias_becomes_run(
    mlflow: MlflowServer, prefect: PrefectServer, tmp_path: Path, run: CommandLine
) -> None:
    """An alias that is set becomes a run, and so does, once, one that moved while nobody listened."""
    pool, port = f"pool-{uuid4().hex[:8]}", free_port()
    workers.make_pool(prefect, pool)
    workers.deploy(prefect, pool, FLOW)
    service = TriggeredService(prefect, tmp_path, pool, MODEL, tracking_uri=mlflow.url)
    webhook = mlflow.post(
        "webhooks",
        name="plansmith",
        url=f"http://127.0.0.1:{port}/hooks/mlflow",
        events=[{"entity": "MODEL_VERSION_ALIAS", "action": "CREATED"}],
        secret=SECRET,
        status="ACTIVE",
    )["webhook"]["webhook_id"]

    with service.receiver(port=port) as receiver:
        assert mlflow.post(f"webhooks/{webhook}/test")["result"]["success"]
        assert soon(partial(_outcomes, receiver), ["ignored"]) == ["ignored"]
        mlflow.log_models()  # which makes version 1 of two the champion
        (entry,) = service.wait_for("done")
        assert [started.id for started in entry.runs] == _runs(service, "1")
        assert _outcomes(receiver) == ["ignored", "stored"]
        # No worker does it here, and the next one waits for its end.
        prefect.ask(f"flow_runs/{entry.runs[0].id}/set_state", state={"type": "COMPLETED"}, force=True)
        assert receiver.ended_by(signal.SIGTERM) == 128 + signal.SIGTERM

    _make_champion(mlflow, "2")
    watch = ("triggers", "watch", "--once", "--service", str(service.path))
    first, second = run(*watch), run(*watch)
    assert (first.status, first.stdout) == (0, "mlflow: 1 state there, 1 new\n"), first.message
    assert (second.status, second.stdout) == (0, "mlflow: 1 state there, 0 new\n"), second.message
    with service.receiver(port=port):
        made_up_for = service.settled(2)[0]
        assert _runs(service, "2") == [started.id for started in made_up_for.runs]
        # Told once more, as by a repetition of MLflow's that comes late.
        _make_champion(mlflow, "2")
        entries = service.settled(3)
    assert {started.id for entry in entries[:-1] for started in entry.runs} == {made_up_for.runs[0].id}
    assert [len(_runs(service, version)) for version in ("1", "2")] == [1, 1]


def _make_champion(mlflow: MlflowServer, version: str) -> None:
    answer: Any = mlflow.post("registered-models/alias", name=MODEL, alias="champion", version=version)
    assert answer == {}


def _outcomes(receiver: Receiver) -> list[str]:
    return [line["outcome"] for line in receiver.lines("delivery")]


def _runs(service: TriggeredService, version: str) -> list[str]:
    return [run["id"] for run in service.runs_of(MODEL, version)]
