"""Compiles that a real Prefect server shows, and of models that a real MLflow server knows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ..support.cli.command import LONGEST_SECONDS, CommandLine
from ..support.faults.ends import still_running
from ..support.prefect.compiled import NAME, check_nothing_half_made, check_whole, small_spec
from ..support.prefect.prefect_server import PrefectServer
from ..support.prefect.workers import words_of
from ..support.servers.mlflow_server import MlflowServer, running
from ..support.waiting import wait_until

STEPS = ["fetch", "export", "sample", "lower", "compile", "validate", "package", "publish"]


def at_work(process: psutil.Process) -> list[psutil.Process]:
    """What compiles for a command."""
    return [child for child in process.children(recursive=True) if "plansmith.steps.worker" in words_of(child)]


def test_cancelled_compile_frees_the_next(prefect: PrefectServer, terminal: CommandLine) -> None:
    """A tracked compile that is cancelled in Prefect ends with all its processes, and the next one completes."""
    # Once the model is fetched, the compile waits until it may go on.
    (terminal.folder / "tiny.yaml").write_text(json.dumps(small_spec(terminal.folder, held=True)))  # which is YAML, too
    arguments = ("compile", "tiny.yaml", "--track")
    variables = prefect.variables()
    with terminal.start(*arguments, **variables) as process:
        command = psutil.Process(process.pid)
        wait_until((terminal.folder / "held").exists)
        assert at_work(command)
        started = command.children(recursive=True)
        first = prefect.run_named(f"{NAME} for local-cpu")["id"]
        prefect.cancel(first)
        _, stderr = process.communicate(timeout=LONGEST_SECONDS)
    assert process.returncode == 130, stderr
    assert "cancelled through Prefect" in stderr
    assert "Traceback" not in stderr
    assert still_running(started) == []
    assert prefect.run_named(f"{NAME} for local-cpu")["state"]["type"] == "CANCELLED"
    check_nothing_half_made(terminal.folder)
    assert not [path for path in terminal.folder.glob("artifacts/**/staging/*") if path.name != ".lock"]

    (terminal.folder / "go").touch()
    assert terminal.document(*arguments, **variables)["version"] == 1
    check_whole(terminal.folder)
    runs = prefect.ask("flow_runs/filter", flow_runs={"name": {"any_": [f"{NAME} for local-cpu"]}})
    (second,) = [run for run in runs if run["id"] != first]
    assert second["state"]["type"] == "COMPLETED"
    assert [task["name"] for task in prefect.tasks_of(second["id"], len(STEPS))] == STEPS


@pytest.fixture
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    """A server with two versions of an ONNX model, `net`, of which the first one is the champion."""
    with running(tmp_path_factory.mktemp("mlflow")) as server:
        server.log_models("net", "net")
        server.post("registered-models/alias", name="net", alias="champion", version="1")
        yield server


def test_registered_model_follows_its_alias(mlflow: MlflowServer, terminal: CommandLine) -> None:
    """The champion is compiled and published, and a fleet's plan says so when it is another version."""
    specs, variables = terminal.folder / "specs", mlflow.variables
    specs.mkdir()
    (specs / "net.yaml").write_text(
        "source: mlflow:models:/net@champion\nname: net\nartifacts: ../artifacts\ncheck_served: false\n"
    )
    release = terminal.document("compile", "specs/net.yaml", **variables)
    assert (release["version"], release["verdict"]) == (1, "passed")
    source = json.loads(Path(release["manifest"]).read_text())["source"]
    assert (source["scheme"], source["revision"], source["registered"]) == ("onnx", "1", "mlflow:models:/net")
    (model,) = terminal.document("fleet", "plan", "specs", "--resolve", **variables)["models"]
    assert model["state"] == "fresh"
    mlflow.post("registered-models/alias", name="net", alias="champion", version="2")
    (model,) = terminal.document("fleet", "plan", "specs", "--resolve", **variables)["models"]
    assert (model["state"], [reason["words"] for reason in model["reasons"]]) == (
        "stale",
        ["models:/net is now at version 2 instead of version 1"],
    )
