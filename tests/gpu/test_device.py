"""A GPU is known by what its driver says of it, and a model is exported from it as from the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support.cli.command import CommandLine
from ..support.faults.compiles import write_tiny_bert
from .compiles import Release, Workshop, released
from .machine import Device, in_child, other_target
from .subjects import subject

pytestmark = pytest.mark.gpu

_VISIBLE = """
import json
from plansmith.system.gpus import visible_gpus
print(json.dumps([gpu.model_dump() for gpu in visible_gpus()]))
"""
_BY_TORCH = """
import json, torch
seen = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
print(json.dumps([[p.name, f"{p.major}.{p.minor}", f"GPU-{p.uuid}"] for p in seen]))
"""
_CUDA_FIRST = """
import json, torch
from plansmith.system.gpus import visible_gpus
torch.ones(1, device="cuda")
print(json.dumps([gpu.uuid for gpu in visible_gpus()]))
"""


def test_first_gpu_matches_nvidia_smi(gpu: Device) -> None:
    """The first GPU is the one that nvidia-smi names."""
    first = in_child(_VISIBLE)[0]
    assert (first["name"], first["uuid"], first["compute_capability"], first["driver"], first["index"]) == (
        gpu.name,
        gpu.uuid,
        gpu.capability,
        gpu.driver,
        0,
    )
    assert abs(first["memory_bytes"] / 2**20 - gpu.memory_mib) <= 1


def test_seen_gpus_match_pytorch() -> None:
    """The GPUs that are seen are those of PyTorch."""
    devices = [[device["name"], device["compute_capability"], device["uuid"]] for device in in_child(_VISIBLE)]
    assert sorted(devices) == sorted(in_child(_BY_TORCH))
    assert in_child(_VISIBLE, CUDA_VISIBLE_DEVICES="") == []


def test_gpu_found_by_uuid(gpu: Device) -> None:
    """A GPU is found by its UUID and while PyTorch uses it."""
    assert [device["uuid"] for device in in_child(_VISIBLE, CUDA_VISIBLE_DEVICES=gpu.uuid)] == [gpu.uuid]
    assert in_child(_CUDA_FIRST, CUDA_VISIBLE_DEVICES=gpu.uuid) == [gpu.uuid]


def test_doctor_names_gpu_and_driver(tmp_path: Path, gpu: Device) -> None:
    """The doctor names the GPU and finds its driver good."""
    findings = CommandLine(tmp_path)("doctor", "--offline", "--json").document["findings"]
    by_name = {finding["name"]: finding for finding in findings}
    assert gpu.name in by_name["GPU 0"]["found"]
    assert gpu.capability in by_name["GPU 0"]["found"]
    assert (by_name["driver"]["severity"], by_name["driver"]["found"]) == ("ok", gpu.driver)


def _exported(folder: Path, device: str) -> Release:
    model = folder / "model"
    place = Workshop(folder, "local-cpu")
    source = f"hf:{model if model.is_dir() else write_tiny_bert(model)}"
    command = ["compile", source, "--random-weights", "--no-check-served", "--device", device, "--json"]
    return released(place.run([*command, "--artifacts", str(folder / device)]))


def test_gpu_export_matches_cpu(tmp_path: Path) -> None:
    """A model on the GPU is exported as on the CPU and passes the same gate."""
    on_gpu, on_cpu = (_exported(tmp_path, device) for device in ("cuda", "cpu"))
    for release in (on_gpu, on_cpu):
        assert (release.document["verdict"], release.document["fixed"]) == ("passed", [])
    assert on_gpu.manifest["spec"]["device"] == "cuda"
    assert on_gpu.manifest["package"]["interface"] == on_cpu.manifest["package"]["interface"]
    assert on_gpu.manifest["onnx"]["axes"] == on_cpu.manifest["onnx"]["axes"]
    assert all(worst["min_cosine"] > 0.99999 for worst in on_gpu.document["validation"].values())


def test_plan_of_missing_tensorrt_refused(tmp_path: Path) -> None:
    """A plan is refused where the target's TensorRT is not there, and nothing is left."""
    place = Workshop(tmp_path, other_target(tmp_path))
    answer = place.run(place.command_line(subject("tiny-bert", tmp_path)))
    assert answer.status == 9, answer
    assert place.target.removesuffix(".yaml").rpartition("-")[2] in answer.message
    assert "\nNext: " in answer.message
    assert not list(place.artifacts.glob("repository*/**/*.plan"))
