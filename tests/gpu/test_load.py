"""Load tests and capacity on a GPU: PyTorch on any Triton, TensorRT beside it where there are the real backends."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from plansmith.capacity.results import CapacityReport
from plansmith.loadtest.results import LoadReport, StageResult

from .compiles import Workshop
from .machine import TRITON_BACKEND, Device, other_target
from .subjects import subject

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

WEIGHTS_BYTES = 90 << 20
"""Less than ResNet-50's 25.6 million weights take in FP32."""


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory, saved: Path) -> Workshop:
    """A folder with a release of ResNet-50 as PyTorch serves it on a GPU, in batches of up to 16."""
    folder = tmp_path_factory.mktemp("load")
    keys = {"engine": "python", "device": "cuda", "target": other_target(folder)}
    return compiled(Workshop(folder, ""), saved, **keys)


def compiled(workshop: Workshop, saved: Path, **keys: object) -> Workshop:
    spec = workshop.folder / "resnet50.yaml"
    spec.write_text(yaml.safe_dump(subject("resnet50", saved).spec(**keys)))
    answer = workshop.run(["compile", str(spec)])
    assert answer.status == 0, answer
    return workshop


def load_report(workshop: Workshop, *arguments: str) -> LoadReport:
    answer = workshop.run(["loadtest", "resnet50", "--warm-up", "3s", *arguments, "--json"])
    assert answer.status == 0, answer
    report = LoadReport.model_validate_json(answer.stdout)
    assert report.ending == "done", report.reason
    for stage in report.stages:
        assert stage.is_valid, stage.client.saturated
        assert stage.stats.requests > stage.stats.failed == 0, stage.failures
    return report


def rate(stage: StageResult) -> float:
    assert stage.stats.throughput is not None
    return stage.stats.throughput


def test_load_test_has_gpu_usage(workshop: Workshop, gpu: Device) -> None:
    """More users are answered faster, in batches, and each stage has utilization, memory and power of the GPU."""
    single, many = load_report(workshop, "--users", "1,16", "--seconds", "8").stages
    assert rate(many) > rate(single)
    assert many.server_models[0].batch_size > single.server_models[0].batch_size == 1
    for stage in (single, many):
        used = next(usage for usage in stage.server.gpus if usage.gpu == gpu.uuid)
        assert used.utilization is not None
        assert 0 < used.utilization <= 1
        assert used.memory_bytes is not None
        assert WEIGHTS_BYTES < used.memory_bytes <= gpu.memory_mib << 20
        assert used.watts


def test_copies_fill_gpu_memory(workshop: Workshop) -> None:
    """Each copy takes the memory of its weights on the GPU, which is free again when all are unloaded."""
    answer = workshop.run(["capacity", "resnet50", "--max-copies", "3", "--invocations", "20", "--json"])
    assert answer.status == 0, answer
    report = CapacityReport.model_validate_json(answer.stdout)
    assert (report.device, len(report.copies), report.ending) == ("gpu", 3, "max-copies")
    assert report.failed_answers == {}
    assert all(copy.memory_bytes["gpu 0"] > WEIGHTS_BYTES for copy in report.copies)
    full, after = (pools[1].used_bytes for pools in (report.memory_full, report.memory_after))
    assert after < full - 2 * WEIGHTS_BYTES
    assert report.eviction is not None
    assert (report.eviction.hits + report.eviction.misses, report.eviction.errors) == (20, 0)


@pytest.mark.skipif(not TRITON_BACKEND.is_file(), reason="only Triton's container serves plans")
def test_plan_outperforms_pytorch(alone: Workshop, workshop: Workshop, saved: Path) -> None:
    """A plan in FP16 answers more requests than PyTorch in FP32 under the same load."""
    keys = {"engine": "tensorrt", "precision": "fp16", "target": alone.target, "tensorrt": {"speed_check": False}}
    load = ("--users", "16", "--seconds", "8")
    (plan,) = load_report(compiled(alone, saved, **keys), *load).stages
    (pytorch,) = load_report(workshop, *load).stages
    assert rate(plan) > rate(pytorch)
