"""BERT-base, ResNet-50 and a ViT become plans in four precisions by both builders, and are what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .compiles import Release, Workshop, released, version_in
from .figures import Figures
from .machine import TRITON_BACKEND, Device, tensorrt_version
from .subjects import subject

pytestmark = pytest.mark.tensorrt

MODELS = ("bert-base", "resnet50", "vit")
PRECISIONS = {"fp32": "float32", "fp16": "float16", "int8": "int8", "fp8": "float8_e4m3fn"}
CORNERS = {(corner, against) for corner in ("min", "opt", "max") for against in ("lowered", "fp32")}


def _layers(release: Release) -> list[dict[str, Any]]:
    """The layers of a plan by TensorRT's inspector, as the release keeps them."""
    (file,) = release.folder.rglob(Path(release.plan["layers_file"]).name)
    layers = json.loads(file.read_text())
    assert isinstance(layers, list)
    return layers


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", MODELS)
def test_plan_matches_gpu_and_precision(
    name: str, precision: str, builder: str, shared: Workshop, saved: Path, gpu: Device, figures: Figures
) -> None:
    """A plan is of this TensorRT, for this GPU, in its precision, and right."""
    if precision == "fp8" and float(gpu.capability) < 8.9:
        pytest.skip(f"{gpu.name} has no FP8")
    model = subject(name, saved)
    release = shared.compile(model, "--precision", precision, "--builder", builder)
    figures.add(name, release, gpu)
    manifest, plan = release.manifest, release.plan
    engine, validation = manifest["engine"], manifest["validation"]

    assert (engine["kind"], engine["precision"], plan["builder"]) == ("tensorrt", precision, builder)
    assert list(engine["plans"]) == [gpu.capability]
    assert plan["gpu"]["name"] == gpu.name
    assert plan["tensorrt"] == version_in(release.plan_file)
    assert f"{plan['tensorrt']}.".startswith(f"{tensorrt_version()}.")
    assert plan["bytes"] == release.plan_file.stat().st_size
    assert (release.folder / "reproduce.sh").is_file()

    layers = _layers(release)
    computing = {dtype for layer in layers if layer["computes"] for dtype in layer["dtypes"]}
    anywhere = {dtype for layer in layers for dtype in layer["dtypes"]}
    assert PRECISIONS[precision] in (anywhere if precision in {"int8", "fp8"} else computing)
    assert precision != "fp32" or computing == {"float32"}

    assert (validation["verdict"], validation["ran"]) == ("passed", [gpu.capability])
    # Nothing was lowered for FP32, so that the lowered graph is the FP32 one.
    graphs = {corner for corner in CORNERS if precision != "fp32" or corner[1] == "fp32"}
    assert {(c["corner"], c["against"]) for c in validation["at_corners"]} == graphs
    (speed,) = validation["speeds"]
    baselines = {baseline["kind"]: baseline for baseline in speed["baselines"]}
    assert speed["median_ms"] > 0
    assert {"eager", "torch.compile"} <= set(baselines)
    assert all((baseline["speed"] is None) == bool(baseline["problem"]) for baseline in baselines.values())
    assert precision != "fp32" or "plan" not in baselines, "there is nothing above FP32"


def test_plan_published_where_faster(shared: Workshop, saved: Path) -> None:
    """A plan is published where it is faster than the next precision and refused elsewhere."""
    command = shared.command_line(subject("resnet50", saved), "--precision", "int8", speed_check=True)
    answer = shared.run([*command, "--json"])
    if answer.status == 5:
        assert "not faster" in answer.message
        assert "speed_check: false" in answer.message
        return
    (speed,) = released(answer).manifest["validation"]["speeds"]
    (beside,) = [baseline for baseline in speed["baselines"] if baseline["kind"] == "plan"]
    assert (beside["precision"], beside["speed"]["verdict"]) == ("fp16", "faster")


@pytest.mark.parametrize("name", MODELS)
def test_running_triton_answers_with_plan(name: str, shared: Workshop, saved: Path) -> None:
    """A running Triton answers with the plan on the GPU."""
    if not TRITON_BACKEND.is_file():
        pytest.skip("this machine has no Triton with a TensorRT backend")
    served = shared.compile(subject(name, saved), "--precision", "fp16").manifest["served"]
    assert (served["backend"], served["device"]) == ("real", "gpu")
    assert {check["protocol"] for check in served["checks"]} == {"http", "grpc"}


def test_plan_has_several_profiles(builder: str, alone: Workshop, saved: Path) -> None:
    """A plan can have several profiles."""
    profiles = {
        "latency": {"input_ids": "1x16:1x64:2x128"},
        "throughput": {"input_ids": "3x16:16x64:16x128"},
    }
    release = alone.compile(subject("bert-base", saved), "--precision", "fp16", "--builder", builder, profiles=profiles)
    built = release.manifest["engine"]["build"]["profiles"]
    assert [profile["name"] for profile in built] == list(profiles)
    assert built[0]["shapes"]["input_ids"] == {"min": [1, 16], "opt": [1, 64], "max": [2, 128]}
    combinations = {(c["profile"], c["corner"], c["against"]) for c in release.manifest["validation"]["at_corners"]}
    assert combinations == {(name, *corner) for name in profiles for corner in CORNERS}
    assert sorted(speed["profile"] for speed in release.manifest["validation"]["speeds"]) == sorted(profiles)
    config = (release.folder / "config.pbtxt").read_text()
    assert "max_batch_size: 16" in config
    assert 'profile: "0"' in config
    assert 'profile: "1"' in config
