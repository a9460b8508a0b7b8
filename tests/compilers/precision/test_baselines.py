"""What a plan stands beside, run for real on the CPU; figures that are checked come from a clock of the tests' own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import parser

from plansmith.compilers.trt.evaluation import baselines
from plansmith.compilers.trt.evaluation.baselines import (
    Baseline,
    graph_baseline,
    latency,
    plan_speed,
    pytorch,
    require_faster,
)
from plansmith.errors import GateError
from plansmith.records.model import Precision, SpeedRatio
from plansmith.records.validation import BaselineSpeed, PlanSpeed

if TYPE_CHECKING:
    import torch

ABOUT = PlanSpeed(
    plan="8.9",
    profile="default",
    precision=Precision.FP16,
    shapes="x 3x4",
    median_ms=0,
    p95_ms=None,
    p99_ms=None,
    repeats=0,
    setting="of the tests",
)


MS = 2.0**-10
TICK = 1000 * MS
"""About a millisecond, in seconds and in milliseconds, that adds up without rounding."""


class Clock:
    """Time that passes only while something runs."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def run(self, *seconds: float) -> Callable[[], None]:
        """Takes these times in turn."""
        left = list(seconds)

        def once() -> None:
            self.now += left[0]
            left.append(left.pop(0))

        return once


def silent(_: str) -> None:
    """Be told of progress and say nothing."""


def measure(clock: Clock, plan: Callable[[], None], *others: Baseline) -> PlanSpeed:
    return plan_speed(plan, ABOUT, others, progress=silent, clock=clock, wall=clock)


def make_baseline(run: Callable[[], None], kind: Any = "plan", precision: Precision = Precision.FP32) -> Baseline:
    return Baseline(kind, precision, "of the tests", run)


def test_latency_told_with_its_certainty() -> None:
    """Latency is told with as much as the runs can tell."""
    clock = Clock()
    assert latency(clock.run(MS, 2 * MS, 3 * MS), clock=clock, budget_seconds=9) == (2 * TICK, 3 * TICK, 3 * TICK, 1000)
    assert latency(clock.run(1.0), clock=clock, budget_seconds=3) == (1000.0, None, None, 10)
    assert latency(clock.run(0.125), clock=clock, budget_seconds=3) == (125.0, 125.0, None, 24)


def test_tail_shows_in_quantiles() -> None:
    """A tail shows in the quantiles and not in the median."""
    clock = Clock()
    result = latency(clock.run(*[MS] * 97, 64 * MS, 64 * MS, 64 * MS), clock=clock, budget_seconds=60)
    assert (result.median, result.p95, result.p99) == (TICK, TICK, 64 * TICK)


def test_plan_measured_alone_and_paired() -> None:
    """A plan is measured alone and beside each of the others."""
    clock = Clock()
    slow, fast = make_baseline(clock.run(4 * MS), "eager"), make_baseline(clock.run(MS), "torch.compile")
    result = measure(clock, clock.run(2 * MS), slow, fast)
    assert (result.median_ms, result.profile, result.shapes) == (2 * TICK, "default", "x 3x4")
    eager, compiled = result.baselines
    assert eager.speed is not None
    assert compiled.speed is not None
    assert (eager.speed.ratio, eager.speed.verdict, eager.median_ms) == (2.0, "faster", 4 * TICK)
    assert (compiled.speed.ratio, compiled.speed.verdict, compiled.median_ms) == (0.5, "slower", TICK)
    assert eager.speed.setting == "the plan: of the tests; the other: of the tests"
    assert PlanSpeed.model_validate_json(result.model_dump_json()) == result


def test_unrunnable_plan_says_why() -> None:
    """What cannot be run says why and keeps no other from being measured."""

    def fails() -> None:
        raise RuntimeError("out of memory\nand more")

    clock = Clock()
    missing = Baseline("torch.compile", Precision.FP32, "cuda", problem="no compiler")
    result = measure(clock, clock.run(0.001), missing, make_baseline(fails, "eager"), make_baseline(clock.run(0.002)))
    assert [(b.problem, b.speed is None) for b in result.baselines] == [
        ("no compiler", True),
        ("out of memory", True),
        ("", False),
    ]


def small_model() -> torch.nn.Module:
    import torch

    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Linear(4, 2)).eval()


FEED = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def test_source_and_graph_run_together(tmp_path: Path) -> None:
    """The source model and its ONNX graph are run beside each other for real."""
    path = tmp_path / "twice.onnx"
    text = '<ir_version: 8, opset_import: ["": 18]> g (float[b, 4] x) => (float[b, 4] y) { y = Add (x, x) }'
    onnx.save(parser.parse_model(text), path)
    graph = graph_baseline(path, {"x": FEED}, Precision.FP32)
    assert graph.run is not None
    with pytorch(small_model(), [FEED], "cpu", backend="no such compiler", progress=silent) as (eager, compiled):
        result = plan_speed(graph.run, ABOUT, [eager, compiled, graph], progress=silent, budget_seconds=0)
    assert [(b.kind, b.precision, b.speed is None) for b in result.baselines] == [
        ("eager", "fp32", False),
        ("torch.compile", "fp32", True),
        ("onnxruntime", "fp32", False),
    ]
    measured = [result.baselines[0], result.baselines[2]]
    assert all(b.speed is not None and b.speed.repeats == 8 and b.speed.ratio > 0 for b in measured)
    assert all(b.median_ms is not None and b.median_ms > 0 for b in measured)
    assert "CPU" in measured[0].setting


def test_uncompilable_model_is_reason() -> None:
    """A model that torch.compile cannot compile is a reason and no error."""
    with pytorch(small_model(), [FEED], "cpu", backend="no such compiler", progress=silent) as (eager, compiled):
        assert eager.run is not None
        assert compiled.run is None
        assert "no such compiler" in compiled.problem


def test_unrunnable_model_is_reason() -> None:
    """A model that cannot be run is a reason for both."""
    with pytorch(small_model(), [FEED[:, :3]], "cpu", progress=silent) as baselines:
        assert [b.run for b in baselines] == [None, None]
        assert "cannot be multiplied" in baselines[0].problem
        assert baselines[1].problem.startswith("PyTorch cannot run the model: ")


def test_missing_gpu_is_reason() -> None:
    """Having no GPU is a reason for both."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytorch(small_model(), [FEED], "cuda", progress=silent) as baselines:
        assert [b.problem for b in baselines] == [f"PyTorch {torch.__version__} sees no GPU here"] * 2


@pytest.mark.slow
def test_model_left_unchanged() -> None:
    """A model is left as it was."""
    import torch

    class Remembers(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last_input = x
            return 2 * x

    module = Remembers().eval()
    with pytorch(module, [FEED], "cpu", backend="no such compiler", progress=silent) as (eager, _):
        assert eager.run is not None
        eager.run()
        assert hasattr(module, "last_input")
    assert not hasattr(module, "last_input")


def test_unrunnable_graph_is_reason(tmp_path: Path) -> None:
    """A graph that ONNX Runtime cannot run is a reason."""
    (tmp_path / "model.onnx").write_bytes(b"no graph")
    baseline = graph_baseline(tmp_path / "model.onnx", {"x": FEED}, Precision.FP16)
    assert baseline.run is None
    assert baseline.problem


@pytest.mark.slow
def test_torch_compile_works_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile compiles for real where there is a compiler."""
    import torch

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    with pytorch(small_model(), [FEED], "cpu", progress=silent) as (_, compiled):
        assert compiled.problem == ""
        assert compiled.setting.endswith("inductor, default mode")
        assert compiled.run is not None
        compiled.run()
    assert list(tmp_path.rglob("*.cpp")), torch.__version__


def ratio(value: float, low: float, high: float) -> SpeedRatio:
    verdict: Any = "faster" if low > 1 else "slower" if high < 1 else "undecided"
    return SpeedRatio(ratio=value, low=low, high=high, repeats=8, setting="", verdict=verdict)


def against_fp32(profile: str, speed_ratio: SpeedRatio | None, plan: str = "8.9") -> PlanSpeed:
    others = (
        BaselineSpeed(kind="eager", precision=Precision.FP32, setting="", speed=ratio(0.5, 0.4, 0.6)),
        BaselineSpeed(kind="plan", precision=Precision.FP32, setting="", speed=speed_ratio),
    )
    return ABOUT.model_copy(update={"profile": profile, "baselines": others, "plan": plan})


def test_faster_plan_passes() -> None:
    """A plan that is faster than the next higher precision passes."""
    require_faster([against_fp32("default", ratio(1.4, 1.3, 1.5))])


def test_plan_faster_at_one_profile_passes() -> None:
    """A plan that is on par at one profile and faster at another passes."""
    require_faster([against_fp32("one", ratio(1.0, 0.99, 1.01)), against_fp32("many", ratio(1.9, 1.8, 2.0))])


@pytest.mark.parametrize("speed_ratio", [ratio(1.0, 0.99, 1.01), ratio(0.9, 0.85, 0.95)])
def test_plan_without_gain_refused(speed_ratio: SpeedRatio) -> None:
    """A plan that is not faster is refused with what to do."""
    with pytest.raises(GateError, match=r"the fp16 plan .* is not faster than that in fp32") as r:
        require_faster([against_fp32("default", speed_ratio)])
    assert f"profile 'default' at x 3x4: {speed_ratio.ratio:.2f} times as fast" in str(r.value)
    assert "precision: fp32" in r.value.remedy
    assert "tensorrt: {speed_check: false}" in r.value.remedy


def test_plan_slower_at_one_profile_refused() -> None:
    """A plan that is slower at one profile is refused, whatever the others are."""
    with pytest.raises(GateError, match="slower"):
        require_faster([against_fp32("one", ratio(0.8, 0.7, 0.9)), against_fp32("many", ratio(1.9, 1.8, 2.0))])


def test_gpus_judged_separately() -> None:
    """Plans of other GPUs do not speak for each other."""
    with pytest.raises(GateError, match=r"compute capability 9\.0"):
        require_faster([against_fp32("p", ratio(1.9, 1.8, 2.0)), against_fp32("p", ratio(1.0, 0.9, 1.1), plan="9.0")])


def test_single_plan_passes() -> None:
    """A plan without another beside it passes."""
    require_faster([ABOUT, against_fp32("default", None)])


def test_low_precisions_have_higher_one() -> None:
    """Every precision but FP32 has a higher one."""
    assert set(baselines.HIGHER) == set(Precision) - {Precision.FP32}
