"""`preprocessing: dali` in a spec: compiled, checked on a real Triton and published; or refused at once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from ..cli.command import CommandLine

SPEC = {
    "source": "timm:test_resnet",
    "name": "tiny",
    "random_weights": True,
    "shapes": {"pixel_values": "1x3x160x160:2x3x160x160:4x3x160x160"},
    "pipeline": {"input": "image", "output": "labels", "preprocessing": "dali", "top_k": 2},
}


@pytest.fixture
def run(tmp_path: Path) -> CommandLine:
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    return CommandLine(tmp_path)


@pytest.mark.slow
@pytest.mark.xdist_group("dali")
def test_an_image_goes_through_dali_in_a_published_ensemble_that_answers_as_timm(run: CommandLine) -> None:
    compiled = run("compile", "spec.yaml", "--repository", "repository")
    assert compiled.status == 0, compiled
    assert "image in, labels out: encoded → dali → model → labels" in compiled.stdout
    assert "answered as by timm" in compiled.stdout
    release = run.folder / "repository.plansmith" / "releases" / "tiny" / "1"
    manifest = json.loads((release / "manifest.json").read_text())
    members = {member["part"]: member for member in manifest["package"]["members"]}
    assert (members["dali"]["backend"], members["dali"]["model_files"]) == ("dali", ["model.dali"])
    config = (release / "members" / "dali" / "config.pbtxt").read_text()
    assert "dynamic_batching" not in config, "an image that DALI cannot decode harms no request but its own"
    assert 'key: "num_threads"' in config
    assert manifest["served"]["requests"] > 10
    Image.fromarray(np.arange(192 * 160 * 3, dtype=np.uint32).astype(np.uint8).reshape(192, 160, 3)).save(
        run.folder / "picture.png"
    )
    asked = run("infer", "tiny", "--file", "picture.png", "--serve", "--repository", "repository", "--json")
    assert asked.status == 0, asked.message


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        pytest.param(("--target", "triton-26.05-cpu"), 6, "which DALI triton-26.05-cpu has", id="unknown"),
        pytest.param((), 9, "plansmith serve-env add local-cpu --dali", id="not installed"),
    ],
)
def test_without_the_targets_dali_nothing_is_begun(
    words: tuple[str, ...], status: int, says: str, run: CommandLine
) -> None:
    refused = run("compile", "spec.yaml", "--repository", "repository", *words, PLANSMITH_SERVE_ENV="empty")
    assert refused.status == status
    assert says in refused.message
    assert "preprocessing: python" in refused.message
    assert not (run.folder / "repository").exists()
