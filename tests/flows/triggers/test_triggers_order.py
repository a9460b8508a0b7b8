"""What is served in the end is what the last event told, on real servers: MLflow, Prefect, and a worker of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ...support.cli.command import CommandLine
from ...support.prefect import workers
from ...support.prefect.prefect_server import PrefectServer
from ...support.servers import mlflow_server
from ...support.servers.mlflow_server import MlflowServer
from ...support.triggers.triggered_service import TriggeredService, alias_set
from ...support.waiting import soon

pytestmark = pytest.mark.services

FLOW = "plansmith.flows.compile_model.compile_model"
POOL = "ordered"
MODEL = "clf"
COMPILE_SECONDS = 600
OWN = f"mlflow:models:/{MODEL}@champion"


@pytest.fixture
def mlflow(tmp_path: Path) -> Iterator[MlflowServer]:
    folder = tmp_path / "mlflow"
    folder.mkdir()
    with mlflow_server.running(folder) as server:
        server.log_models()
        yield server


def test_last_event_is_served(
    prefect: PrefectServer,
    mlflow: MlflowServer,
    tmp_path: Path,
    run: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last event is served, also where an alias is set back, and a refresh leaves it so."""
    spec = {"source": OWN, "check_served": False}
    service = TriggeredService(prefect, tmp_path, POOL, MODEL, tracking_uri=mlflow.url, spec=spec)
    workers.make_pool(prefect, POOL)
    workers.deploy(prefect, POOL, FLOW, job_variables={"working_dir": str(tmp_path)})
    for key, value in mlflow.variables.items():
        monkeypatch.setenv(key, value)
    plan = ("fleet", "plan", str(tmp_path / "specs"), "--artifacts", str(tmp_path / "artifacts"), "--resolve", "--json")
    with (
        service.receiver() as receiver,
        workers.running(prefect, POOL, tmp_path / "workers", count=1, MLFLOW_TRACKING_URI=mlflow.url),
    ):
        assert receiver.post(alias_set(MODEL, "d-1")) == 202
        service.settled(1)
        _make_champion(mlflow, "2")
        assert receiver.post(alias_set(MODEL, "d-2", version="2")) == 202
        newest, oldest = service.settled(2)
        assert soon(partial(_released, tmp_path, 2), ["1", "2"], seconds=COMPILE_SECONDS) == ["1", "2"]
        assert [line["entry"] for line in receiver.lines("build") if line["outcome"] == "behind"].count(newest.id) > 0
        (first,), (second,) = (service.runs_of(MODEL, version) for version in ("1", "2"))
        assert second["start_time"] >= first["end_time"]
        assert [entry.runs[0].id for entry in (oldest, newest)] == [first["id"], second["id"]]

        _make_champion(mlflow, "1")
        watched = run("triggers", "watch", "--once", "--service", str(service.path))
        assert watched.stdout == "mlflow: 1 state there, 1 new\n", watched.message
        service.settled(3)
        assert soon(partial(_released, tmp_path, 3), ["1", "2", "1"], seconds=COMPILE_SECONDS) == ["1", "2", "1"]
        # What comes late is no news: the registry says otherwise, and so does the next look at it.
        assert receiver.post(alias_set(MODEL, "d-2-late", version="2")) == 202
        assert run("triggers", "watch", "--once", "--service", str(service.path)).stdout.endswith(" 1 new\n")
        again, late, back, *_ = service.settled(5)
        assert (late.runs, late.reason) == ((), f"entry {again.id} tells of a later version")
        assert again.runs == back.runs, "what is served already is not built again"

    (planned,) = run(*plan).document["models"]
    assert planned["state"] == "fresh", planned
    _make_champion(mlflow, "2")
    (moved,) = run(*plan).document["models"]
    assert moved["state"] == "stale"
    assert f"models:/{MODEL} is now at version 2 instead of version 1" in json.dumps(moved["reasons"])


def _make_champion(mlflow: MlflowServer, version: str) -> None:
    answer: Any = mlflow.post("registered-models/alias", name=MODEL, alias="champion", version=version)
    assert answer == {}


def _released(folder: Path, number: int) -> list[str]:
    """The versions in the registry that releases were made from, in their order, once there are so many."""
    releases = folder / "artifacts" / "repository.plansmith" / "releases" / MODEL
    manifests = [releases / str(version) / "manifest.json" for version in range(1, number + 1)]
    if not all(path.is_file() for path in manifests):
        time.sleep(0.5)
        return []
    return [json.loads(path.read_text())["source"]["revision"] for path in manifests]
