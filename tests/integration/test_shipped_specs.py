"""The specs that ship: each model of each file is compiled, served by a real Triton, and asked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from plansmith.config.loader import read_specs

from ..support.cli.commands import compile_model, run
from ..support.pipelines.images import encoded, photographs
from ..support.real_sentences import real_sentences
from ..support.source import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.services, pytest.mark.xdist_group("shipped")]

MODELS = ROOT / "configs" / "models"
HUB = "published"
"""The file whose models lie on a hub; `published-random` has the same architectures."""
TWO_TARGETS = "inception-v3-dali"
"""Has tests of its own, in tests/pipelines/dali."""

IMAGE = ("--file", "flower.png")
PIXELS = "1x3x224x224:1x3x224x224:2x3x224x224"
IDS = "1x1:1x64:2x64"
REQUESTS: dict[str, tuple[str, ...]] = {
    "all-MiniLM-L6-v2": ("--text", "a cat on a mat"),
    "all-MiniLM-L6-v2-int8": ("--random",),
    "assistant-random": ("--text", "Who wrote the first program?"),
    "bert-base-random": ("--random",),
    "bert-entities-random": ("--text", "Ada Lovelace lived in London."),
    "bert-fill-mask-random": ("--text", "Rome is the [MASK] of Italy."),
    "bert-large-random": ("--random",),
    "clip-random": ("--file", "image=flower.png", "--input", 'texts=["a flower", "a cat"]'),
    "convnext-base-random": ("--random",),
    "mobilenetv3-random": ("--random",),
    "resnet18-images": IMAGE,
    "resnet18-images-dali": IMAGE,
    "resnet18-random": ("--random",),
    "resnet50-random": ("--random",),
    "roberta-large-random": ("--random",),
    "t5-random": ("--text", "translate: good morning", "--parameter", "max_new_tokens=8"),
    "t5-streaming-random": ("--stream", "--text", "translate: good morning", "--parameter", "max_new_tokens=8"),
    "translator-random": ("--text", "Guten Morgen"),
    "vit-large-random": ("--random",),
}
SMALLER: dict[str, tuple[str, ...]] = {
    "convnext-base-random": ("--shapes", f"pixel_values={PIXELS}"),
    "vit-large-random": ("--shapes", f"pixel_values={PIXELS}"),
    "roberta-large-random": ("--shapes", f"input_ids={IDS}"),
    "bert-large-random": ("--shapes", f"input_ids={IDS}"),
}
"""Batches in which a large model does not take half an hour."""


def shipped() -> list[Any]:
    files = [path for path in sorted(MODELS.glob("*.yaml")) if path.stem not in (HUB, TWO_TARGETS)]
    return [
        pytest.param(path.name, model.name, id=model.name) for path in files for model in read_specs(path, {}).models
    ]


@pytest.fixture
def folder(tmp_path: Path, minilm_folder: Path) -> Path:
    """The specs as they lie in the repository, with the model and the sentences that `make demo-int8` brings."""
    shutil.copytree(MODELS, tmp_path / "configs" / "models")
    artifacts = tmp_path / "artifacts"
    for name in ("models", "data"):
        (artifacts / name).mkdir(parents=True)
    (artifacts / "models" / "all-MiniLM-L6-v2").symlink_to(minilm_folder)
    (artifacts / "data" / "sentences.txt").write_text("\n".join(real_sentences()))
    (tmp_path / "flower.png").write_bytes(encoded(photographs()["flower"], "PNG"))
    return tmp_path


@pytest.mark.parametrize(("file", "name"), shipped())
def test_shipped_spec(folder: Path, monkeypatch: pytest.MonkeyPatch, file: str, name: str) -> None:
    """It passes its gate and its served check, and a request of a user's gets an answer."""
    monkeypatch.chdir(folder)
    spec = str(Path("configs", "models", file))
    document = compile_model(Path("artifacts"), spec, "--model", name, *SMALLER.get(name, ()))
    document = document.get("models", [document])[0]
    assert (document["name"], document["verdict"]) == (name, "passed")
    assert document["served"]["checks"]
    arguments = REQUESTS[name]
    printed = run("infer", name, *arguments, "--serve", "--repository", document["repository"], "--json")
    answers = [json.loads(text)["outputs"] for text in (printed.splitlines() if "--stream" in arguments else [printed])]
    assert len(answers) > 1 or "--stream" not in arguments
    for output in (output for answer in answers for output in answer.values()):
        values = np.asarray(output["data"])
        assert values.size
        assert values.dtype.kind in "US" or np.isfinite(values).all()


def test_published_and_random_models_match() -> None:
    """Each published model has a twin of the same shapes that needs no hub."""
    published, twins = (
        {model["name"].removesuffix("-random"): model["shapes"] for model in document["models"]}
        for document in (yaml.safe_load((MODELS / f"{HUB}{end}.yaml").read_text()) for end in ("", "-random"))
    )
    assert published == twins
