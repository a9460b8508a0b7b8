"""Registered models from end to end: a real MLflow server, models that MLflow itself logged, and the real compile."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ...support.prefect.programs import own_environment
from ...support.servers.mlflow_server import MlflowServer, running

pytestmark = pytest.mark.services


@dataclass(frozen=True)
class Desk:
    """A folder in which somebody types commands, with a server that knows models."""

    server: MlflowServer
    folder: Path

    def type(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "plansmith", *words],
            cwd=self.folder,
            env=own_environment(**self.server.variables, **variables),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def compile(self, *words: str, **variables: str) -> dict[str, Any]:
        done = self.type("compile", *words, "--no-check-served", "--json", **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def planned(self, *words: str) -> dict[str, Any]:
        done = self.type("fleet", "plan", "specs", "--json", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        (model,) = json.loads(done.stdout)["models"]
        assert isinstance(model, dict)
        return model


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    with running(tmp_path_factory.mktemp("mlflow")) as found:
        found.log_models()
        yield found


@pytest.fixture
def desk(server: MlflowServer, tmp_path: Path) -> Desk:
    return Desk(server, tmp_path)


def source_of(document: dict[str, Any]) -> dict[str, Any]:
    found = json.loads(Path(document["manifest"]).read_text())["source"]
    assert isinstance(found, dict)
    return found


def test_an_alias_is_compiled_published_and_stale_when_it_moves(desk: Desk) -> None:
    specs = desk.folder / "specs"
    specs.mkdir()
    (specs / "clf.yaml").write_text(
        "source: mlflow:models:/clf@champion\nname: clf\nartifacts: ../artifacts\ncheck_served: false\n"
    )
    first = desk.compile("specs/clf.yaml")
    source = source_of(first)
    assert (source["scheme"], source["revision"], source["registered"]) == ("hf", "1", "mlflow:models:/clf")
    release = Path(first["manifest"]).parent
    assert "\nsource: mlflow:models:/clf/1\n" in f"\n{(release / 'spec.yaml').read_text()}"
    assert desk.compile("specs/clf.yaml")["unchanged"]
    assert desk.planned("--resolve")["state"] == "fresh"
    desk.server.post("registered-models/alias", name="clf", alias="champion", version="2")
    try:
        assert desk.planned()["state"] == "fresh"
        stale = desk.planned("--resolve")
        assert stale["state"] == "stale"
        assert stale["reasons"] == [
            {"cause": "source", "words": "models:/clf is now at version 2 instead of version 1"}
        ]
        second = desk.compile("specs/clf.yaml")
        assert (second["version"], source_of(second)["revision"]) == (2, "2")
        assert source_of(second)["digest"] != source["digest"]
        assert desk.planned("--resolve")["state"] == "fresh"
    finally:
        desk.server.post("registered-models/alias", name="clf", alias="champion", version="1")


def test_an_onnx_model_is_compiled_as_its_file_would_be(desk: Desk) -> None:
    found = source_of(desk.compile("mlflow:models:/net/latest"))
    assert (found["scheme"], found["revision"], found["registered"]) == ("onnx", "1", "mlflow:models:/net")


def test_a_module_that_torch_export_saw_is_compiled(desk: Desk) -> None:
    found = source_of(desk.compile("mlflow:models:/exported/1"))
    assert (found["scheme"], found["revision"], found["registered"]) == ("torch", "1", "mlflow:models:/exported")


def test_a_pickled_module_is_compiled_where_that_is_allowed(desk: Desk) -> None:
    (desk.folder / "pickled.yaml").write_text(
        "source: mlflow:models:/pickled/1\nallow_pickle: true\ncheck_served: false\n"
        "inputs:\n  x: {dtype: float32, dims: [batch, 4]}\n"
    )
    assert source_of(desk.compile("pickled.yaml"))["scheme"] == "torch"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("pickled/1", "reading a pickle can run any code"),
        ("clf@nobody", "alias nobody not found"),
        ("clf/99", "version=99) not found"),
        ("nothing/1", "name=nothing, version=1) not found"),
    ],
)
def test_what_cannot_be_compiled_is_refused_with_what_to_do(desk: Desk, source: str, said: str) -> None:
    done = desk.type("compile", f"mlflow:models:/{source}", "--no-check-served")
    assert done.returncode == 3, done.stdout + done.stderr
    assert said in done.stderr
    assert "Next: " in done.stderr


@pytest.mark.parametrize("address", ["s3://evil/model", "hf://org/model", "gs://evil/model"])
def test_an_address_that_anybody_may_have_registered_is_not_gone_to(desk: Desk, address: str) -> None:
    desk.server.post("registered-models/create", name="planted")
    made = desk.server.post("model-versions/create", name="planted", source=address)
    number = made["model_version"]["version"]
    done = desk.type("compile", f"mlflow:models:/planted/{number}", "--no-check-served")
    assert done.returncode == 3, done.stdout + done.stderr
    assert f"lies at {address}, which is no place that models may come from" in done.stderr


def test_a_copied_version_leads_to_the_files_of_the_first(desk: Desk) -> None:
    desk.server.post("registered-models/create", name="copied")
    desk.server.post("model-versions/create", name="copied", source="models:/net/1")
    assert source_of(desk.compile("mlflow:models:/copied/1"))["registered"] == "mlflow:models:/copied"
