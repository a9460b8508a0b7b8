"""Endpoints that ship are served on this machine: an ensemble with DALI, and a T5 on the Python backend."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import yaml

from plansmith.config.targets import DEFAULT_TARGET, load_target

from ..support.cli.command import CommandLine
from ..support.source import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.services]


@pytest.fixture
def terminal(run_alone: CommandLine) -> CommandLine:
    """A folder with the models and endpoints that ship."""
    for name in ("models", "endpoints"):
        shutil.copytree(ROOT / "configs" / name, run_alone.folder / "configs" / name)
    return run_alone


def served(terminal: CommandLine, endpoint: str) -> dict[str, Any]:
    """The one archive of an endpoint, as it was served here."""
    (row,) = terminal.document("sagemaker", "deploy", f"configs/endpoints/{endpoint}.yaml", "--local")["local"]
    assert row["compared"]
    return dict(row)


def test_a_t5_generates_text(terminal: CommandLine) -> None:
    terminal.document("compile", "configs/models/t5-random.yaml", "--model", "t5-random")
    assert served(terminal, "t5")["request"] == "the request 'one sentence' of its release"


def test_dali_ensemble_labels_image(terminal: CommandLine) -> None:
    """An ensemble with DALI labels an image."""
    target = terminal.folder / "configs" / "endpoints" / "targets" / "sagemaker-26.05-dali.yaml"
    local_target = load_target(DEFAULT_TARGET)  # whose ONNX Runtime and DALI are installed, unlike the container's
    assert local_target.onnxruntime is not None
    installed = {"onnxruntime": local_target.onnxruntime.model_dump(mode="json"), "dali": local_target.dali}
    target.write_text(yaml.safe_dump(yaml.safe_load(target.read_text()) | installed))
    repository = "artifacts/sagemaker-repository-dali"
    spec = "configs/models/resnet18-images-dali.yaml"
    terminal.document("compile", spec, "--target", str(target), "--repository", repository)
    assert served(terminal, "images-dali")["archive"].startswith("resnet18-images-dali-1-")
