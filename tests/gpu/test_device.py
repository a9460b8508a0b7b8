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


def test_the_first_gpu_is_the_one_that_nvidia_smi_names(gpu: Device) -> None:
    first = in_child(_VISIBLE)[0]
    assert (first["name"], first["uuid"], first["compute_capability"], first["driver"], first["index"]) == (
        gpu.name,
        gpu.uuid,
        gpu.capability,
        gpu.driver,
        0,
    )
    assert abs(first["memory_bytes"] / 2**20 - gpu.memory_mib) <= 1


def test_the_gpus_that_are_seen_are_those_of_pytorch() -> None:
    seen = [[one["name"], one["compute_capability"], one["uuid"]] for one in in_child(_VISIBLE)]
    assert sorted(seen) == sorted(in_child(_BY_TORCH))
    assert in_child(_VISIBLE, CUDA_VISIBLE_DEVICES="") == []


def test_a_gpu_is_found_by_its_uuid_and_while_pytorch_uses_it(gpu: Device) -> None:
    assert [one["uuid"] for one in in_child(_VISIBLE, CUDA_VISIBLE_DEVICES=gpu.uuid)] == [gpu.uuid]
    assert in_child(_CUDA_FIRST, CUDA_VISIBLE_DEVICES=gpu.uuid) == [gpu.uuid]


def test_the_doctor_names_the_gpu_and_finds_its_driver_good(tmp_path: Path, gpu: Device) -> None:
    findings = CommandLine(tmp_path)("doctor", "--offline", "--json").document["findings"]
    found = {finding["name"]: finding for finding in findings}
    assert gpu.name in found["GPU 0"]["found"]
    assert gpu.capability in found["GPU 0"]["found"]
    assert (found["driver"]["severity"], found["driver"]["found"]) == ("ok", gpu.driver)


def _exported(folder: Path, device: str) -> Release:
    model = folder / "model"
    place = Workshop(folder, "local-cpu")
    source = f"hf:{model if model.is_dir() else write_tiny_bert(model)}"
    words = ["compile", source, "--random-weights", "--no-check-served", "--device", device, "--json"]
    return released(place.run([*words, "--artifacts", str(folder / device)]))


def test_a_model_on_the_gpu_is_exported_as_on_the_cpu_and_passes_the_same_gate(tmp_path: Path) -> None:
    on_gpu, on_cpu = (_exported(tmp_path, device) for device in ("cuda", "cpu"))
    for release in (on_gpu, on_cpu):
        assert (release.document["verdict"], release.document["fixed"]) == ("passed", [])
    assert on_gpu.manifest["spec"]["device"] == "cuda"
    assert on_gpu.manifest["package"]["interface"] == on_cpu.manifest["package"]["interface"]
    assert on_gpu.manifest["onnx"]["axes"] == on_cpu.manifest["onnx"]["axes"]
    assert all(worst["min_cosine"] > 0.99999 for worst in on_gpu.document["validation"].values())


def test_a_plan_is_refused_where_the_targets_tensorrt_is_not_and_nothing_is_left(tmp_path: Path) -> None:
    place = Workshop(tmp_path, other_target(tmp_path))
    answer = place.run(place.words(subject("tiny-bert", tmp_path)))
    assert answer.status == 9, answer
    assert place.target.removesuffix(".yaml").rpartition("-")[2] in answer.message
    assert "\nNext: " in answer.message
    assert not list(place.artifacts.glob("repository*/**/*.plan"))
