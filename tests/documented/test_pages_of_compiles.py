"""The pages on compiling: the first steps, plans, pipelines, fleets, events of registries."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from ..support.cli.documented_sessions import follow, lay_out_text_model, plansmith
from ..support.models.clip import write_clip_small
from ..support.models.encoders import save_bert
from ..support.servers.hub_server import running
from ..support.source import ROOT
from ..support.tensorrt import rtx
from ..support.triggers.mlflow_server import Mlflow, serving

pytestmark = [pytest.mark.slow, pytest.mark.services, pytest.mark.timeout(600)]

SPEC = "source: hf:../../bert\nname: {}\nshapes: {{input_ids: '1x1:2x8:4x16'}}\n"


def test_first_steps_run(tmp_path: Path, minilm_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory, in FP32 and INT8, and a model of the hub answer, as README and the first page show."""
    lay_out_text_model(tmp_path, minilm_folder)
    follow("docs/getting-started.md", tmp_path)
    with running(minilm_folder, "sentence-transformers/all-MiniLM-L6-v2") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
        follow("README.md", tmp_path)


def test_tensorrt_page_runs(tmp_path: Path, minilm_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan is planned, and its graph is built by TensorRT-RTX."""
    rtx.install(monkeypatch)
    lay_out_text_model(tmp_path, minilm_folder)
    follow("docs/tensorrt.md", tmp_path)


def test_fleets_page_runs(tmp_path: Path) -> None:
    """Of three models one is fresh, one is built and one fails."""
    save_bert(tmp_path / "bert", "Model")
    specs = tmp_path / "configs" / "models"
    specs.mkdir(parents=True)
    for name in ("minilm", "ranker"):
        (specs / f"{name}.yaml").write_text(SPEC.format(name))
    plansmith(tmp_path, "fleet", "run", "configs/models")
    with (specs / "minilm.yaml").open("a") as spec:
        spec.write("triton: {dynamic_batching: {max_queue_delay_microseconds: 500}}\n")
    strict = "tolerances: {last_hidden_state: {max_relative: 1.0e-12}}\n"
    (specs / "detector.yaml").write_text(SPEC.format("detector") + strict)
    follow("docs/fleets.md", tmp_path, failing=("plansmith fleet run",))


def test_triggers_page_runs(tmp_path: Path) -> None:
    """A service says what it would build of what its registry has."""
    shutil.copytree(ROOT / "configs" / "models", tmp_path / "configs" / "models")
    with serving(Mlflow()) as mlflow:
        mlflow.add("minilm", 1)
        mlflow.aliases["minilm"] = {"champion": "1"}
        follow("docs/triggers.md", tmp_path, {"https://mlflow.example.com": mlflow.url})


def test_pipelines_page_runs(tmp_path: Path) -> None:
    """A CLIP tells which of three labels fits a photograph."""
    from skimage import data, io
    from transformers import CLIPConfig, CLIPModel

    io.imsave(tmp_path / "cat.jpg", data.chelsea())  # type: ignore[no-untyped-call]
    write_clip_small(tmp_path / "clip")
    config: Any = CLIPConfig.from_pretrained(tmp_path / "clip")
    CLIPModel(config).save_pretrained(tmp_path / "clip")
    follow("docs/pipelines.md", tmp_path, {"hf:openai/clip-vit-base-patch32": "hf:./clip"})
