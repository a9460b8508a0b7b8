"""How fast a plan is beside what it is meant to replace: PyTorch, `torch.compile`, a plan of the next higher precision.

Everything answers the same inputs, which lie where it computes, and is waited for after every run. Two at a time run in
turns (see `precision.speed`), so that a machine that slows down does so for both. Nothing here knows what a plan is: it
is something that can be run once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from plansmith.compilers.precision.benchmark import Clock, Run, machine, race, session_run
from plansmith.compilers.trt.evaluation.torch_baselines import Baseline, pytorch
from plansmith.errors import GateError, first_line
from plansmith.records.model import Precision, SpeedRatio
from plansmith.records.validation import BaselineSpeed, PlanSpeed, baseline_name

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]

__all__ = [
    "HIGHER",
    "Baseline",
    "Latency",
    "graph_baseline",
    "latency",
    "plan_baseline",
    "plan_speed",
    "pytorch",
    "require_faster",
]

HIGHER = {
    Precision.FP8: Precision.FP16,
    Precision.INT8: Precision.FP16,
    Precision.FP16: Precision.FP32,
    Precision.BF16: Precision.FP32,
}
"""The precision that a plan has to be faster than; FP32 has none above it."""

_PLAN = "the plan"
_WARM_UPS = 3
_FEWEST, _MOST = 10, 1000
_QUANTILES = {0.95: 20, 0.99: 100}
"""A quantile and how many runs it takes to see anything beyond it."""


class Latency(NamedTuple):
    """How long single runs took, in milliseconds; quantiles are None where there were too few runs to tell."""

    median: float
    p95: float | None
    p99: float | None
    repeats: int


def graph_baseline(path: Path, feed: Mapping[str, Array], precision: Precision, threads: int = 1) -> Baseline:
    """A graph in ONNX Runtime on the CPU."""
    words = f"CPU, {threads} thread{'s' if threads > 1 else ''}, {machine()}"
    try:
        return Baseline("onnxruntime", precision, words, session_run(path, feed, threads))
    except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors have no common base
        return Baseline("onnxruntime", precision, words, problem=first_line(error))


def plan_baseline(make: Callable[[], Run], precision: Precision, setting: str) -> Baseline:
    """Another plan; `make` makes ready what runs it."""
    try:
        return Baseline("plan", precision, setting, make())
    except Exception as error:  # noqa: BLE001 - no memory for a second plan, for one: what is missing is a figure
        return Baseline("plan", precision, setting, problem=first_line(error))


def plan_speed(
    plan: Run,
    about: PlanSpeed,
    baselines: Sequence[Baseline],
    *,
    progress: Callable[[str], None],
    clock: Clock = time.perf_counter,
    wall: Clock = time.monotonic,
    budget_seconds: float = 30.0,
) -> PlanSpeed:
    """The record with the latency of a plan in it, and how much faster the plan is than each of the others.

    Args:
        plan: answers once, and is waited for.
        about: says which plan it is, at which shapes it runs and how; its figures are replaced.
        baselines: what it stands beside.
        progress: told what is at work.
        clock: what a run costs, in seconds.
        wall: what the budget is counted by.
        budget_seconds: after so long no further repeats of a race are begun.
    """
    progress(f"measuring the plan at {about.shapes}")
    found = latency(plan, clock=clock)
    beside = []
    for other in baselines:
        progress(f"measuring the plan beside {baseline_name(_unmeasured(other))}, in turns")
        beside.append(_beside(plan, other, about.setting, clock, wall, budget_seconds))
    return about.model_copy(
        update={
            "median_ms": found.median,
            "p95_ms": found.p95,
            "p99_ms": found.p99,
            "repeats": found.repeats,
            "baselines": tuple(beside),
        }
    )


def latency(run: Run, *, clock: Clock = time.perf_counter, budget_seconds: float = 3.0) -> Latency:
    """How long single runs take: as many as the budget has room for, after some to warm up."""
    for _ in range(_WARM_UPS):
        run()
    timed = _Timed(run, clock)
    started = clock()
    while len(timed.seconds) < _FEWEST or (len(timed.seconds) < _MOST and clock() - started < budget_seconds):
        timed()
    ordered = sorted(1000 * seconds for seconds in timed.seconds)
    p95, p99 = (
        ordered[math.ceil(share * len(ordered)) - 1] if len(ordered) >= needed else None
        for share, needed in _QUANTILES.items()
    )
    return Latency(median(ordered), p95, p99, len(ordered))


def require_faster(speeds: Sequence[PlanSpeed]) -> None:
    """Let plans through that are worth their precision: faster than that of the next higher one.

    A plan is refused that is surely slower at the opt shapes of one of its profiles, or surely faster at none; one that
    stands beside no other plan passes.

    Raises:
        GateError: names the profiles and the ratios.
    """
    for capability in dict.fromkeys(speed.plan for speed in speeds):
        beside = [
            (speed, other, other.speed)
            for speed in speeds
            if speed.plan == capability
            for other in speed.baselines
            if other.kind == "plan" and other.speed is not None
        ]
        verdicts = {ratio.verdict for _, _, ratio in beside}
        if not beside or ("faster" in verdicts and "slower" not in verdicts):
            continue
        speed, other, _ = beside[0]
        told = "\n".join(f"  profile {s.profile!r} at {s.shapes}: {_format_ratio(r)}" for s, _, r in beside)
        raise GateError(
            f"the {speed.precision} plan for compute capability {capability} is not faster than that in"
            f" {other.precision}:\n{told}",
            remedy=f"nothing was published; use `precision: {other.precision}`, or set"
            " `tensorrt: {speed_check: false}` to have it all the same",
        )


def _format_ratio(speed: SpeedRatio) -> str:
    return f"{speed.ratio:.2f} times as fast (95 % interval {speed.low:.2f} to {speed.high:.2f}: {speed.verdict})"


class _Timed:
    """A run that remembers how long it took."""

    def __init__(self, run: Run, clock: Clock) -> None:
        self.seconds: list[float] = []
        self._run, self._clock = run, clock

    def __call__(self) -> None:
        before = self._clock()
        self._run()
        self.seconds.append(self._clock() - before)


def _unmeasured(other: Baseline) -> BaselineSpeed:
    """The record of something that has no figure yet, or none at all."""
    return BaselineSpeed(kind=other.kind, precision=other.precision, setting=other.setting, problem=other.problem)


def _beside(
    plan: Run, other: Baseline, setting: str, clock: Clock, wall: Clock, budget_seconds: float
) -> BaselineSpeed:
    unmeasured = _unmeasured(other)
    if other.run is None:
        return unmeasured
    try:
        other.run()
    except Exception as error:  # noqa: BLE001 - whatever it raises is why there is no figure
        return unmeasured.model_copy(update={"problem": first_line(error)})
    timed = _Timed(other.run, clock)
    held = race(
        {_PLAN: plan, other.kind: timed},
        other.kind,
        setting=f"the plan: {setting}; the other: {other.setting}",
        clock=clock,
        wall=wall,
        budget_seconds=budget_seconds,
    )
    return unmeasured.model_copy(
        update={"speed": held.result[_PLAN], "median_ms": 1000 * median(timed.seconds[-held.rounds :])}
    )
