"""Registered models on their way into a compile: fetched once, kept by content, asked for each time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plansmith.cli.compile.scaffold import study, write_spec
from plansmith.config.source_reference import parse_reference
from plansmith.config.spec import ModelSpec, make_spec
from plansmith.errors import PlansmithError, SourceError, UsageError
from plansmith.records.model import SourceModel
from plansmith.steps.compile_python import require_pytorch
from plansmith.steps.fetch import fetch
from plansmith.steps.provenance.fingerprint import REGISTERED, Hub
from plansmith.steps.provenance.reproduction import reproduction
from plansmith.steps.runner import Listener, StageRunner, StepResult

from ...support.cli.command import CommandLine
from ...support.models.graphs import save_product
from ..pytorch.programs import net
from .registry import Registry
from .written import FOLDER


def spec_of(source: str, folder: Path, **values: Any) -> ModelSpec:
    return make_spec({"source": f"mlflow:models:/{source}", "artifacts": str(folder / "artifacts"), **values})


@contextmanager
def stages_in(folder: Path, *, dry: bool = False) -> Iterator[StageRunner]:
    stages = StageRunner("m", folder / "artifacts", listener=Listener(), force=False, dry=dry)
    try:
        yield stages
    finally:
        stages.close()


def fetched(spec: ModelSpec, folder: Path, *, dry: bool = False) -> StepResult[SourceModel]:
    with stages_in(folder, dry=dry) as stages:
        source = fetch(stages, spec, parse_reference(spec.source, relative_to=folder))
    assert source is not None
    return source


def is_missing(spec: ModelSpec, folder: Path) -> bool:
    """Whether a look finds nothing."""
    with stages_in(folder, dry=True) as stages:
        return fetch(stages, spec, parse_reference(spec.source, relative_to=folder)) is None


def add_graph(registry: Registry, version: str, folder: Path) -> None:
    """Register an ONNX model with weights outside of the graph."""
    folder.mkdir()
    path, _ = save_product(folder)
    described = (FOLDER / "onnx-external" / "MLmodel").read_bytes()
    files = {"model.onnx": path.read_bytes(), "weights.bin": (folder / "weights.bin").read_bytes()}
    registry.add(version, {"MLmodel": described, "conda.yaml": b"a", **files})


def add_folder(registry: Registry, version: str, folder: Path, *, weights: str = "model.safetensors") -> Path:
    """Register a model of transformers as MLflow lays it out; returns the same as save_pretrained lays it out."""
    from safetensors.numpy import save

    folder.mkdir()
    own = {"config.json": b'{"model_type": "bert"}', "tokenizer.json": b"{}"}
    own[weights] = save({"weight": np.ones(4, "float32")})
    for name, content in own.items():
        (folder / name).write_bytes(content)
    described = (FOLDER / "transformers" / "MLmodel").read_bytes()
    laid = {f"{'components/tokenizer' if 'token' in name else 'model'}/{name}": body for name, body in own.items()}
    registry.add(version, {"MLmodel": described, **laid})
    return folder


@pytest.mark.slow
def test_onnx_version_downloaded_once(registry: Registry, tmp_path: Path) -> None:
    """An ONNX version is kept with its weights and downloaded once."""
    add_graph(registry, "net/4", tmp_path / "net")
    registry.aliases["net@champion"] = "4"
    spec = spec_of("net@champion", tmp_path)
    assert is_missing(spec, tmp_path)
    first = fetched(spec, tmp_path)
    record = first.record
    assert (record.scheme, record.revision, record.registered) == ("onnx", "4", "mlflow:models:/net")
    assert record.address == "mlflow:models:/net"
    assert Path(record.location).is_relative_to(tmp_path / "artifacts" / "cache" / "fetch")
    assert [path.name for path in first.files] == ["model.onnx", "weights.bin"]
    registry.requests.clear()
    again, dry = fetched(spec, tmp_path), fetched(spec, tmp_path, dry=True)
    assert (first.cached, again.cached, dry.cached) == (False, True, True)
    assert first.digest == again.digest == dry.digest
    assert not any("model.onnx" in path or "weights.bin" in path for path in registry.requests)


def test_transformers_version_equals_logged_folder(registry: Registry, tmp_path: Path) -> None:
    """A version of Transformers is the same model as the folder that was logged."""
    folder = add_folder(registry, "clf/1", tmp_path / "logged")
    result = fetched(spec_of("clf/1", tmp_path), tmp_path)
    local = fetched(make_spec({"source": f"hf:{folder}", "artifacts": str(tmp_path / "artifacts")}), tmp_path)
    assert result.record.scheme == "hf"
    assert result.record.digest == local.record.digest
    assert [path.name for path in result.files] == ["config.json", "model.safetensors", "tokenizer.json"]


def test_pickled_weights_need_spec_permission(registry: Registry, tmp_path: Path) -> None:
    """Pickled weights are read only where the spec allows them."""
    add_folder(registry, "clf/1", tmp_path / "logged", weights="pytorch_model.bin")
    with pytest.raises(SourceError, match="has no weights") as refused:
        fetched(spec_of("clf/1", tmp_path), tmp_path)
    assert "--allow-pickle" in refused.value.remedy
    allowed = fetched(spec_of("clf/1", tmp_path, allow_pickle=True), tmp_path)
    assert "pytorch_model.bin" in [path.name for path in allowed.files]


def add_module(registry: Registry, version: str, content: bytes) -> None:
    """Register a program of torch.export as MLflow lays it out."""
    described = (FOLDER / "pytorch-pt2" / "MLmodel").read_bytes()
    registry.add(version, {"MLmodel": described, "requirements.txt": b"torch", "data/model.pt2": content})


@pytest.mark.slow
def test_exported_module_compiled_as_logged(registry: Registry, tmp_path: Path) -> None:
    """An exported module is compiled from the version that was logged."""
    add_module(registry, "net/2", net()[1])
    command = CommandLine(tmp_path)
    answer = command("compile", "mlflow:models:/net/2", "--no-check-served", "--json", MLFLOW_TRACKING_URI=registry.url)
    manifest = json.loads(Path(answer.document["manifest"]).read_text())
    source, onnx = manifest["source"], manifest["onnx"]
    assert (source["scheme"], source["revision"], source["registered"]) == ("torch", "2", "mlflow:models:/net")
    assert onnx["components"]["model"]["inputs"] == [{"name": "input", "dtype": "float32", "dims": ["batch", 4]}]
    assert onnx["reference"]["runtime"].startswith("PyTorch ")


@pytest.mark.slow
def test_fixed_size_export_compiled_and_told(registry: Registry, tmp_path: Path) -> None:
    """What was exported with one size is compiled with it and said to be."""
    add_module(registry, "net/1", net(batch=1)[1])
    command = CommandLine(tmp_path)
    answer = command("compile", "mlflow:models:/net/1", "--no-check-served", MLFLOW_TRACKING_URI=registry.url)
    assert answer.status == 0, answer.stderr
    assert "Guard failed: input.size()[0] == 1" in answer.stdout + answer.stderr


@pytest.mark.slow
def test_module_never_asked_impossible_things(registry: Registry, tmp_path: Path) -> None:
    """A module is asked nothing that it cannot do."""
    add_module(registry, "net/1", net()[1])
    with pytest.raises(UsageError, match="task cannot change them"):
        fetched(spec_of("net/1", tmp_path, task="text-classification"), tmp_path)
    with pytest.raises(UsageError, match="engine python serves models of transformers and timm"):
        require_pytorch(spec_of("net/1", tmp_path, engine="python"), "torch")
    result = fetched(spec_of("net/1", tmp_path), tmp_path)
    assert [path.name for path in result.files] == ["MLmodel", "model.pt2"]


def test_version_facts_held_against_spec(registry: Registry, tmp_path: Path) -> None:
    """What only the version tells is held against the spec."""
    add_graph(registry, "net/1", tmp_path / "net")
    with pytest.raises(UsageError, match="a task cannot change it"):
        fetched(spec_of("net/1", tmp_path, task="text-classification"), tmp_path)
    with pytest.raises(UsageError, match="an ONNX file is none"):
        require_pytorch(spec_of("net/1", tmp_path, engine="python"), "onnx")


@pytest.mark.slow
def test_release_rebuilt_from_aliased_version(registry: Registry, tmp_path: Path) -> None:
    """A release is made again from the version that the alias stood for."""
    add_graph(registry, "net/4", tmp_path / "net")
    registry.aliases["net@champion"] = "4"
    spec = spec_of("net@champion", tmp_path)
    source = fetched(spec, tmp_path).record
    files = reproduction(
        spec, parse_reference(spec.source, relative_to=tmp_path), source, relative_to=tmp_path, data=None
    )
    assert "\nsource: mlflow:models:/net/4\n" in f"\n{files['spec.yaml']}"


@pytest.mark.slow
def test_first_spec_keeps_alias(registry: Registry, tmp_path: Path) -> None:
    """A first spec keeps the alias and says which version it was."""
    add_graph(registry, "net/4", tmp_path / "net")
    registry.aliases["net@champion"] = "4"
    spec = spec_of("net@champion", tmp_path)
    text = write_spec(spec, study(spec, listener=Listener()), tmp_path)
    assert "\nsource: mlflow:models:/net@champion\n" in text
    assert "It was version 4; write mlflow:models:/net/4 to stay with it." in " ".join(text.replace("# ", "").split())


@pytest.mark.slow
def test_killed_download_leaves_no_half(registry: Registry, tmp_path: Path) -> None:
    """A download that is killed leaves no half of a model."""
    add_graph(registry, "net/1", tmp_path / "net")
    registry.stall_at = "weights.bin"
    script = "import sys; from tests.sources.mlflow.test_fetching import fetched, spec_of; from pathlib import Path"
    command = f"{script}; folder = Path(sys.argv[1]); fetched(spec_of('net/1', folder), folder)"
    with subprocess.Popen([sys.executable, "-c", command, str(tmp_path)], cwd=Path(__file__).parents[3]) as running:
        assert registry.stalled.wait(120)
        running.kill()
    registry.stall_at = ""
    registry.may_go_on.set()
    cache = tmp_path / "artifacts" / "cache"
    assert list(cache.glob("fetch/*")) == []
    assert list(cache.glob("staging/*/model.onnx")) != []
    assert not fetched(spec_of("net/1", tmp_path), tmp_path).cached
    assert list(cache.glob("staging/*/*")) == []


@pytest.mark.slow
def test_dry_run_without_server_warns(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run without the server says that a compile would ask it."""
    add_graph(registry, "net/1", tmp_path / "net")
    registry.status = 503
    assert is_missing(spec_of("net/1", tmp_path), tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with pytest.raises(PlansmithError, match="MLFLOW_TRACKING_URI is not set"):
        fetched(spec_of("net/1", tmp_path), tmp_path, dry=True)


@pytest.mark.slow
def test_alias_asked_once(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an alias stands is asked once, and what is known stands where nobody answers."""
    registry.add("net/1", {})
    registry.add("net/2", {})
    registry.aliases["net@champion"] = "2"
    messages: list[str] = []
    hub = Hub(ask=True, notice=messages.append)
    versions = [
        hub.commit("models:/net", revision, "1", of=REGISTERED)
        for revision in ("@champion", "@champion", "1", "latest")
    ]
    assert versions == ["2", "2", "1", "2"]
    assert len(registry.requests) == 2
    assert Hub(ask=False).commit("models:/net", "@champion", "1", of=REGISTERED) == "1"
    with pytest.raises(SourceError, match="not found"):
        hub.commit("models:/net", "@gone", "1", of=REGISTERED)
    assert messages == []
    registry.status = 503
    hub = Hub(ask=True, notice=messages.append)
    names = [f"@{letter}" for letter in "abcde"]
    assert [hub.commit("models:/net", name, "1", of=REGISTERED) for name in names] == ["1"] * 5
    assert len(messages) == 3
    assert messages[-1].endswith("the version that is known stands; it is not asked again")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    messages.clear()
    hub = Hub(ask=True, notice=messages.append)
    assert [hub.commit("models:/net", name, "1", of=REGISTERED) for name in names] == ["1"] * 5
    assert len(messages) == 1
    assert "MLFLOW_TRACKING_URI is not set" in messages[0]
    assert "the versions that are known stand, for all models" in messages[0]
