"""A real MLflow server is told what came of real builds, also of those that ended while nobody was there to tell."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ...support.cli.command import CommandLine
from ...support.prefect import workers
from ...support.prefect.prefect_server import PrefectServer
from ...support.servers import mlflow_server
from ...support.servers.mlflow_server import MlflowServer
from ...support.triggers.triggered_service import Receiver, TriggeredService, alias_set

pytestmark = pytest.mark.services

FLOW = "plansmith.flows.compile_model.compile_model"
POOL = "written"
MODELS = ("net", "pickled", "clf")
ALIAS = "plansmith-ready"
CHAMPION = {"champion": "1"}
SECONDS = 300


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    with mlflow_server.running(tmp_path_factory.mktemp("mlflow")) as server:
        server.log_models()
        yield server


def test_killed_service_still_tells_versions(
    prefect: PrefectServer, mlflow: MlflowServer, tmp_path: Path, run: CommandLine
) -> None:
    """Versions are told what came of them after a service was killed."""
    service = _service(prefect, mlflow, tmp_path)
    for model in MODELS:
        mlflow.post("registered-models/alias", name=model, alias="champion", version="1")
    workers.make_pool(prefect, POOL)
    workers.deploy(prefect, POOL, FLOW, job_variables={"working_dir": str(tmp_path)})
    with service.receiver() as first:
        for model in MODELS:
            assert first.post(alias_set(model, f"d-{model}")) == 202
        service.settled(3)
        (crashed,) = service.runs_of("clf")
        prefect.ask(f"flow_runs/{crashed['id']}/set_state", state={"type": "CRASHED"}, force=True)
        first.program.kill()
    with workers.running(prefect, POOL, tmp_path / "workers", count=1, MLFLOW_TRACKING_URI=mlflow.url):
        for model in ("net", "pickled"):
            _wait_until_ended(service, model)
    with service.receiver() as second:
        second.program.wait_until(lambda: len(_written_lines(second)) == 3, SECONDS)
        assert sorted(line["verdict"] for line in _written_lines(second)) == ["failed", "failed", "published"]

    net = _tags(mlflow, "net")
    assert net["plansmith.verdict"] == net["plansmith.net.local-cpu.verdict"] == "published"
    assert net["plansmith.net.local-cpu.published"] == f"{tmp_path / 'artifacts' / 'repository'} version 1"
    (path,) = tmp_path.glob("artifacts/repository.plansmith/releases/net/1/manifest.json")
    release = json.loads(path.read_text())
    figures = json.loads(net["plansmith.net.local-cpu.figures"])
    assert figures["bytes"] == sum(file["bytes"] for file in release["files"])
    assert (figures["precision"], figures["min_cosine"]) == ("fp32", pytest.approx(1))
    assert net["plansmith.net.local-cpu.manifest"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert service.runs_of("net")[0]["id"] in net["plansmith.net.local-cpu.run"]

    pickled = _tags(mlflow, "pickled")
    assert pickled["plansmith.verdict"] == "failed"
    assert pickled["plansmith.pickled.local-cpu.reason"] == "failed at fetch, exit code 3"
    assert _tags(mlflow, "clf")["plansmith.clf.local-cpu.reason"] == "failed, exit code 9"
    assert [_aliases(mlflow, model) for model in MODELS] == [CHAMPION | {ALIAS: "1"}, CHAMPION, CHAMPION]
    listed = run("triggers", "inbox", "list", "--service", str(service.path)).stdout
    assert listed.count("the registry was told: failed") == 2
    assert listed.count("the registry was told: published") == 1


def _service(prefect: PrefectServer, mlflow: MlflowServer, folder: Path) -> TriggeredService:
    """One that tells its registry."""
    service = TriggeredService(prefect, folder, POOL, *MODELS, tracking_uri=mlflow.url, spec={"check_served": False})
    values = json.loads(service.path.read_text())
    values["triggers"]["registries"]["mlflow"] |= {"write_back": True, "write_back_alias": ALIAS}
    service.path.write_text(json.dumps(values))
    return service


def _written_lines(receiver: Receiver) -> list[dict[str, Any]]:
    """What it logged of entries that were told; where a server was slow to answer, it put some off before."""
    return [line for line in receiver.lines("write-back") if line["outcome"] == "written"]


def _wait_until_ended(service: TriggeredService, model: str) -> None:
    deadline = time.monotonic() + SECONDS
    while (state := service.runs_of(model)[0]["state"])["type"] not in {"COMPLETED", "FAILED", "CRASHED"}:
        assert time.monotonic() < deadline, state
        time.sleep(0.1)


def _tags(mlflow: MlflowServer, model: str) -> dict[str, str]:
    """The tags of a model's first version."""
    model_version = mlflow.get("model-versions/get", name=model, version="1")["model_version"]
    return {tag["key"]: tag["value"] for tag in model_version.get("tags", [])}


def _aliases(mlflow: MlflowServer, model: str) -> dict[str, str]:
    registered_model = mlflow.get("registered-models/get", name=model)["registered_model"]
    return {alias["alias"]: alias["version"] for alias in registered_model.get("aliases", [])}
