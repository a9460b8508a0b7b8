"""What a plan is measured beside runs on the GPU: PyTorch as it is, and through `torch.compile`."""

from __future__ import annotations

from typing import Any

import pytest

from .machine import Device, in_child

pytestmark = pytest.mark.gpu

_SETUP = """
import json, sys
import numpy as np, torch
from plansmith.compilers.trt.evaluation.baselines import latency, plan_speed, pytorch
from plansmith.records.validation import PlanSpeed

layers = [torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.LayerNorm(512), torch.nn.Linear(512, 512)]
module = torch.nn.Sequential(*layers).eval()
feed = [np.random.default_rng(0).standard_normal((64, 512), dtype=np.float32)]
silent = lambda _: None
"""

_BOTH = """
flags = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
with pytorch(module, feed, "cuda", tf32=True, progress=silent) as (eager, compiled):
    inside = next(module.parameters()).device.type
    idle = []
    for baseline in (eager, compiled):
        if baseline.run is not None:
            baseline.run()
            idle.append(torch.cuda.current_stream().query())
    about = PlanSpeed(plan="", profile="", precision="fp32", shapes="64x512", median_ms=0, p95_ms=None, p99_ms=None,
                      repeats=0, setting="eager, in the place of a plan")
    speed = plan_speed(eager.run, about, [compiled], progress=silent, budget_seconds=5)
print(json.dumps({
    "kinds": [eager.kind, compiled.kind],
    "problems": [eager.problem, compiled.problem],
    "precisions": [eager.precision, compiled.precision],
    "settings": [eager.setting, compiled.setting],
    "idle": idle,
    "inside": inside,
    "outside": next(module.parameters()).device.type,
    "flags": flags == (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32),
    "speed": speed.model_dump(),
}))
"""

_HALF = """
with pytorch(module.half(), [feed[0].astype(np.float16)], "cuda", progress=silent) as (eager, _):
    print(json.dumps([eager.precision, eager.problem, latency(eager.run, budget_seconds=1).repeats]))
"""


@pytest.fixture(scope="module")
def child_report() -> dict[str, Any]:
    document = in_child(_SETUP + _BOTH)
    assert isinstance(document, dict)
    return document


def test_pytorch_runs_on_gpu(child_report: dict[str, Any], gpu: Device) -> None:
    """PyTorch and torch.compile both run on the GPU."""
    assert (child_report["kinds"], child_report["problems"]) == (["eager", "torch.compile"], ["", ""])
    assert child_report["precisions"] == ["fp32", "fp32"]
    assert child_report["inside"] == "cuda"
    assert all(gpu.name in setting and "TF32 on" in setting for setting in child_report["settings"])


def test_run_has_ended_on_return(child_report: dict[str, Any]) -> None:
    """A run has ended when it returns."""
    assert child_report["idle"] == [True, True]


def test_model_and_multiplication_unchanged(child_report: dict[str, Any]) -> None:
    """The model and the way that PyTorch multiplies are as before."""
    assert child_report["outside"] == "cpu"
    assert child_report["flags"]


def test_gpu_runs_measured_in_turns(child_report: dict[str, Any]) -> None:
    """Two that run on the GPU are measured in turns."""
    speed = child_report["speed"]
    (beside,) = speed["baselines"]
    assert (beside["kind"], beside["problem"]) == ("torch.compile", "")
    assert beside["speed"]["low"] <= beside["speed"]["ratio"] <= beside["speed"]["high"]
    assert speed["repeats"] >= 10
    assert min(speed["median_ms"], beside["median_ms"]) > 0


def test_half_precision_model_measured_unchanged() -> None:
    """A model in half precision is measured as it came."""
    precision, problem, repeats = in_child(_SETUP + _HALF)
    assert (precision, problem) == ("fp16", "")
    assert repeats >= 10
