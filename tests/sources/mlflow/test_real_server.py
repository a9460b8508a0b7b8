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

    def type(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "plansmith", *arguments],
            cwd=self.folder,
            env=own_environment(**self.server.variables, **variables),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def compile(self, *arguments: str, **variables: str) -> dict[str, Any]:
        done = self.type("compile", *arguments, "--no-check-served", "--json", **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def planned(self, *arguments: str) -> dict[str, Any]:
        done = self.type("fleet", "plan", "specs", "--json", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        (model,) = json.loads(done.stdout)["models"]
        assert isinstance(model, dict)
        return model


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    with running(tmp_path_factory.mktemp("mlflow")) as mlflow:
        mlflow.log_models()
        yield mlflow


@pytest.fixture
def desk(server: MlflowServer, tmp_path: Path) -> Desk:
    return Desk(server, tmp_path)


def source_of(document: dict[str, Any]) -> dict[str, Any]:
    source = json.loads(Path(document["manifest"]).read_text())["source"]
    assert isinstance(source, dict)
    return source


def test_alias_compiled_then_stale_after_move(desk: Desk) -> None:
    """An alias is compiled, published, and stale when it moves."""
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


def test_onnx_model_compiled_like_file(desk: Desk) -> None:
    """An ONNX model is compiled as its file would be."""
    source = source_of(desk.compile("mlflow:models:/net/latest"))
    assert (source["scheme"], source["revision"], source["registered"]) == ("onnx", "1", "mlflow:models:/net")


def test_exported_module_compiled(desk: Desk) -> None:
    """A module that torch.export saw is compiled."""
    source = source_of(desk.compile("mlflow:models:/exported/1"))
    assert (source["scheme"], source["revision"], source["registered"]) == ("torch", "1", "mlflow:models:/exported")


def test_allowed_pickled_module_compiled(desk: Desk) -> None:
    """A pickled module is compiled where that is allowed."""
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
def test_uncompilable_source_refused_with_remedy(desk: Desk, source: str, said: str) -> None:
    """What cannot be compiled is refused with what to do."""
    done = desk.type("compile", f"mlflow:models:/{source}", "--no-check-served")
    assert done.returncode == 3, done.stdout + done.stderr
    assert said in done.stderr
    assert "Next: " in done.stderr


@pytest.mark.parametrize("address", ["s3://evil/model", "hf://org/model", "gs://evil/model"])
def test_untrusted_address_never_contacted(desk: Desk, address: str) -> None:
    """An address that anybody may have registered is not gone to."""
    desk.server.post("registered-models/create", name="planted")
    document = desk.server.post("model-versions/create", name="planted", source=address)
    number = document["model_version"]["version"]
    done = desk.type("compile", f"mlflow:models:/planted/{number}", "--no-check-served")
    assert done.returncode == 3, done.stdout + done.stderr
    assert f"lies at {address}, which is no place that models may come from" in done.stderr


def test_copied_version_leads_to_original(desk: Desk) -> None:
    """A copied version leads to the files of the first."""
    desk.server.post("registered-models/create", name="copied")
    desk.server.post("model-versions/create", name="copied", source="models:/net/1")
    assert source_of(desk.compile("mlflow:models:/copied/1"))["registered"] == "mlflow:models:/copied"
