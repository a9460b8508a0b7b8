"""Searches and comparisons on a GPU: PyTorch on any Triton, TensorRT beside it where there are the real backends."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from plansmith.tuning.comparison.figures import Comparison

from .compiles import Workshop
from .machine import TRITON_BACKEND, Device, other_target
from .subjects import subject

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

in_container = pytest.mark.skipif(not TRITON_BACKEND.is_file(), reason="only Triton's container serves plans")

QUICK = ("--budget", "14", "--seconds", "2", "--users", "8", "--delays", "0,1000", "--instances", "1,2", "--json")
LOAD = ("--users", "1,8,32", "--seconds", "3", "--rounds", "2")
COST = ("--instance-type", "ml.g5.xlarge", "--target-rate", "1000")


def test_pytorch_is_tuned(tmp_path: Path, saved: Path, gpu: Device) -> None:
    """PyTorch alone is tuned in two precisions, with the memory that it uses on the GPU."""
    spec = tmp_path / "resnet50.yaml"
    keys = {"engine": "python", "device": "cuda", "triton": {"max_batch_size": 1}}
    spec.write_text(yaml.safe_dump(subject("resnet50", saved).spec(target=other_target(tmp_path), **keys)))
    answer = Workshop(tmp_path, "").run(["tune", str(spec), "--engines", "python", "--precisions", "fp32,fp16", *QUICK])
    assert answer.status == 0, answer
    assert gpu.name in answer.document["plan"]["host"]
    trials = [trial for trial in answer.document["search"]["trials"] if trial["measurement"]]
    assert {trial["configuration"]["build"]["precision"] for trial in trials} == {"fp32", "fp16"}
    assert all(trial["measurement"]["memory_bytes"] > 64 << 20 for trial in trials)
    assert answer.document["search"]["confirmations"]


@in_container
def test_search_beats_single_samples(alone: Workshop, saved: Path) -> None:
    """A plan in FP32 for one sample at a time is beaten by an interval above 1; a second search measures nothing."""
    spec = alone.folder / "resnet50.yaml"
    keys = {"tensorrt": {"speed_check": False}, "triton": {"max_batch_size": 1}}
    spec.write_text(yaml.safe_dump(subject("resnet50", saved).spec(engine="tensorrt", target=alone.target, **keys)))
    command = ["tune", str(spec), "--engines", "python,tensorrt", "--precisions", "fp32,fp16", *QUICK]
    answer = alone.run(command)
    assert answer.status == 0, answer
    assert answer.document["better"], answer.document["verdict"]
    assert answer.document["search"]["confirmations"][-1]["gain"]["low"] > 1
    trials = answer.document["search"]["trials"]
    assert {trial["configuration"]["build"]["engine"] for trial in trials} == {"python", "tensorrt"}
    assert all(trial["configuration"]["threads"] == 0 for trial in trials)
    assert alone.run(command).document["search"]["measured"] == 0


@in_container
def test_pytorch_and_tensorrt_are_compared(shared: Workshop, saved: Path) -> None:
    """The eight cells of ResNet-50 have figures, GPU memory and costs, with published figures beside them."""
    model = subject("resnet50", saved)
    spec = shared.folder / "compared.yaml"
    spec.write_text(yaml.safe_dump(model.spec(target=shared.target, tensorrt={"speed_check": False})))
    answer = shared.run(["compare", str(spec), "--json", *LOAD, *COST])
    assert answer.status == 0, answer
    comparison = Comparison.model_validate_json(answer.stdout)
    assert {str(row.cell.engine) for row in comparison.rows} == {"python", "tensorrt"}
    assert len(comparison.rows) == 8
    for row in comparison.rows:
        assert row.problem == ""
        assert row.figures is not None
        assert row.figures.gpu_memory_bytes
        assert row.cost is not None
    assert comparison.published
