"""What stands beside a plan at each profile's opt, run for real; figures differ and are not looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from plansmith.compilers.trt.evaluation.baselines import pytorch
from plansmith.compilers.trt.evaluation.latency import NO_SOURCE, RunningPlan, measure_plan
from plansmith.records.model import Precision, Tensor
from plansmith.records.validation import PlanSpeed
from plansmith.sources.loaded_model import InputPlan, LoadedModel

from ...support.validation.graphs import silent
from ...support.validation.plans import WHOLE, WORDS, Bench, profile

if TYPE_CHECKING:
    import pytest
    from numpy.typing import NDArray

PROFILES = (profile("few", (1, 2), (2, 3), (6, 12)), profile("many", (1, 4), (4, 10), (16, 12)))


def running(bench: Bench) -> RunningPlan:
    ask = bench.stand_in()

    def runner_for(feed: Mapping[str, NDArray[Any]], place: int) -> Callable[[], object]:
        return lambda: ask(feed, place)

    return RunningPlan(bench.engine(), runner_for, "ONNX Runtime of the tests")


def measure(bench: Bench, **more: Any) -> tuple[PlanSpeed, ...]:
    arguments = {"source": None, "device": "cpu", "budget_seconds": 0, "progress": silent, **more}
    return measure_plan(running(bench), "8.9", bench.onnx(), bench.folder, **arguments)


def test_profiles_measured_at_opt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every profile is measured at its opt shape and says what has no figure."""
    monkeypatch.setattr("plansmith.compilers.trt.evaluation.baselines._MOST", 10)
    bench = Bench(tmp_path, profiles=PROFILES)
    (tmp_path / "fp32").mkdir()
    higher = running(Bench(tmp_path / "fp32", precision=Precision.FP32, profiles=PROFILES))
    speeds = measure(bench, higher=higher)
    assert [(s.profile, s.shapes) for s in speeds] == [
        ("few", "input_ids 2x3, attention_mask 2x3"),
        ("many", "input_ids 4x10, attention_mask 4x10"),
    ]
    assert set(bench.requests) == {(0, (2, 3)), (1, (4, 10))}
    for speed in speeds:
        eager, compiled, plan = speed.baselines
        assert (eager.problem, compiled.problem) == (NO_SOURCE, NO_SOURCE)
        assert (plan.kind, plan.precision, plan.problem) == ("plan", "fp32", "")
        assert plan.speed is not None
        assert plan.speed.repeats == 8
        assert (speed.plan, speed.repeats, speed.p95_ms, speed.setting) == (
            "8.9",
            10,
            None,
            "ONNX Runtime of the tests",
        )
        assert np.isfinite(speed.median_ms)


def source_model(*names: str) -> LoadedModel:
    """A PyTorch model that embeds the input of its last name, and remembers what it was asked."""
    import torch

    class Embedding(torch.nn.Module):
        shapes: tuple[torch.Size, ...] = ()

        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(WORDS, 4)

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor]:
            assert tensors[0].max() <= 1, "the mask comes first"
            type(self).shapes += (tensors[-1].shape,)
            return (self.embedding(tensors[-1]),)

    nothing = cast("Any", None)
    plan = InputPlan(
        tensors=tuple(Tensor(name=name, dtype="int64", dims=("batch", "sequence")) for name in names),
        axes={},
        limits={},
        mask_input=None,
        make=nothing,
        data="",
        takes=nothing,
        encode=nothing,
    )
    return LoadedModel(Embedding().eval(), plan, ("y",), nothing)


def test_source_gets_same_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source model gets the same inputs in its own order."""
    monkeypatch.setattr("plansmith.compilers.trt.evaluation.baselines._MOST", 10)
    monkeypatch.setattr(
        "plansmith.compilers.trt.evaluation.latency.pytorch", partial(pytorch, backend="no such compiler")
    )
    source = source_model("attention_mask", "input_ids")
    (speed,) = measure(Bench(tmp_path, profiles=(WHOLE,)), source=source)
    eager, compiled = speed.baselines
    assert eager.speed is not None
    assert "no such compiler" in compiled.problem
    assert set(vars(type(source.module))["shapes"]) == {(3, 6)}


def test_lost_input_is_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An input that the graph lost is a reason."""
    monkeypatch.setattr("plansmith.compilers.trt.evaluation.baselines._MOST", 10)
    (speed,) = measure(Bench(tmp_path), source=source_model("token_type_ids", "input_ids"))
    assert [b.problem for b in speed.baselines] == ["the graph has no input token_type_ids, which the model takes"] * 2


def test_unrunnable_higher_plan_is_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A higher plan that does not run is a reason."""

    def refuses(*_: object) -> Callable[[], object]:
        raise MemoryError("no memory for a second plan")

    monkeypatch.setattr("plansmith.compilers.trt.evaluation.baselines._MOST", 10)
    bench = Bench(tmp_path)
    (speed,) = measure(bench, higher=RunningPlan(bench.engine(), refuses))
    assert speed.baselines[-1].problem == "no memory for a second plan"
    assert "no CUDA graphs" in speed.baselines[-1].setting
