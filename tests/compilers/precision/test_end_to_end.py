"""The main job in INT8, through the real command and the real Triton, on real sentences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ...support import warm
from ...support.real_sentences import real_sentences

CALIBRATION, EVALUATION = 48, 256
SHAPES = "input_ids=1x1:8x32:8x64"


def run(*arguments: str | Path) -> dict[str, Any]:
    """A command of plansmith's; its JSON document."""
    done = warm.run([*warm.COMMAND, *map(str, arguments), "--json"])
    assert done.returncode == 0, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, minilm_folder: Path) -> Path:
    """A spec, and sentences beside it."""
    folder = tmp_path_factory.mktemp("int8")
    (folder / "sentences.txt").write_text("\n".join(real_sentences()[: CALIBRATION + EVALUATION]))
    (folder / "minilm.yaml").write_text(
        f"source: hf:{minilm_folder}\nname: minilm\nartifacts: artifacts\nprecision: int8\n"
        f"shapes: {{input_ids: '{SHAPES.partition('=')[2]}'}}\n"
        "lowering: {quantisation: dynamic}\n"
        f"data: {{path: sentences.txt, calibration: {CALIBRATION}, evaluation: {EVALUATION}}}\n"
    )
    return folder


@pytest.fixture(scope="module")
def compiled(folder: Path) -> dict[str, Any]:
    return run("compile", folder / "minilm.yaml")


@pytest.mark.slow
@pytest.mark.xdist_group("int8-end-to-end")
def test_real_sentences_keep_their_vectors_in_a_quarter_of_the_bytes_on_a_running_triton(
    compiled: dict[str, Any],
) -> None:
    manifest = json.loads((Path(compiled["model_path"]) / "manifest.json").read_text())
    assert (compiled["precision"], compiled["verdict"]) == ("int8", "passed")
    evaluation = manifest["validation"]["evaluation"]
    assert evaluation["samples"] == EVALUATION
    hidden = next(a for a in evaluation["agreements"] if a["output"] == "last_hidden_state")
    assert hidden["mean_cosine"] >= 0.993
    assert hidden["min_cosine"] >= 0.98
    assert manifest["validation"]["evidence"] == "given"
    chosen = next(t for t in manifest["lowered"]["trials"] if t["chosen"])
    assert chosen["file_bytes"] <= 0.28 * manifest["lowered"]["fp32_bytes"]
    (model,) = [f for f in manifest["files"] if f["path"] == "model/model.onnx"]
    assert model["bytes"] == chosen["file_bytes"], "what was tried is what is served"
    assert manifest["served"]["requests"] > 10


@pytest.mark.slow
@pytest.mark.xdist_group("int8-end-to-end")
def test_the_release_tells_how_it_was_lowered_and_keeps_no_held_out_sentence(compiled: dict[str, Any]) -> None:
    release = Path(compiled["model_path"])
    manifest = json.loads((release / "manifest.json").read_text())
    data, recipe = manifest["data"], manifest["lowered"]["recipe"]
    assert len(set(data["evaluation"]["digests"])) == EVALUATION
    assert not set(data["evaluation"]["digests"]) & set(data["calibration"]["digests"])
    assert recipe["calibration_samples"] == len(data["calibration"]["rows"]) >= CALIBRATION
    assert recipe["lowered"]["MatMul"] == 36
    assert all(node["reason"] for node in recipe["kept"])
    assert len(manifest["lowered"]["layers"]) >= 36
    kept = {file.relative_to(release).parts[0] for file in release.rglob("*") if file.is_file()}
    assert not kept & {"calibration", "evaluation"}
    assert recipe["method"] in (release / "report.html").read_text()
    assert run("validate", release)["verdict"] == "passed"


@pytest.mark.slow
@pytest.mark.xdist_group("int8-end-to-end")
def test_the_same_again_is_unchanged_and_fp32_is_judged_on_the_same_samples(
    compiled: dict[str, Any], folder: Path
) -> None:
    again = run("compile", folder / "minilm.yaml")
    assert again["unchanged"]
    assert all(step["cached"] for step in again["steps"])
    plain = run("compile", folder / "minilm.yaml", "--precision", "fp32", "--no-check-served")
    cached = {step["name"]: step["cached"] for step in plain["steps"]}
    assert (cached["export"], cached["sample"], cached["validate"]) == (True, True, False)
    manifest = json.loads((Path(plain["model_path"]) / "manifest.json").read_text())
    assert manifest["validation"]["evaluation"]["agreements"][0]["min_cosine"] > 0.999999
    assert plain["version"] == compiled["version"] + 1
