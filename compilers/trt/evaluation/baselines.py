"""Speed baselines of a plan: PyTorch, `torch.compile`, and a plan of the next higher precision.

Everything answers the same inputs, which lie where it computes, and is waited for after every run. Two at a time run in
turns (see `precision.speed`), so that a machine that slows down does so for both. Nothing here knows what a plan is: it
is something that can be run once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

from plansmith.compilers.precision.benchmark import Clock, Run, machine, race, session_run
from plansmith.errors import GateError, first_line
from plansmith.records.model import ExportDevice, Precision, SpeedRatio
from plansmith.records.validation import BaselineSpeed, PlanSpeed, baseline_name
from plansmith.sources.loaded_model import left_as_it_was

if TYPE_CHECKING:
    import numpy as np
    import torch
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
_QUANTILES = {0.95: 20, 0.99: 100}
"""A quantile and how many runs it takes to see anything beyond it."""


@dataclass(frozen=True)
class Baseline:
    """Baseline: something that a plan is compared with.

    Args:
        kind: what it is.
        precision: what it computes in.
        setting: how it runs, in words.
        run: answers once, and is waited for; None where it cannot.
        problem: why it cannot.
    """

    kind: Literal["eager", "torch.compile", "onnxruntime", "plan"]
    precision: Precision
    setting: str
    run: Run | None = None
    problem: str = ""


@contextmanager
def pytorch(
    module: torch.nn.Module,
    inputs: Sequence[Array],
    device: ExportDevice,
    *,
    tf32: bool = False,
    backend: str = "inductor",
    progress: Callable[[str], None],
) -> Iterator[tuple[Baseline, Baseline]]:
    """PyTorch baselines: a model in eager mode and with `torch.compile`, ready to run; restored at the end.

    Neither is an error where it cannot be run: its `problem` says why.

    Args:
        module: takes tensors by position; in eval mode, and in the precision that it came in.
        inputs: one array for each, at the shapes that matter.
        device: where both run.
        tf32: whether FP32 products may be computed in TF32, as the plan's may be; on a GPU only.
        backend: what `torch.compile` compiles with.
        progress: told what is at work.
    """
    import torch

    precision = _precision_of(module)
    if device == "cuda" and not torch.cuda.is_available():
        missing = f"PyTorch {torch.__version__} sees no GPU here"
        yield (
            Baseline("eager", precision, device, problem=missing),
            Baseline("torch.compile", precision, device, problem=missing),
        )
        return
    setting = _setting(device, tf32)
    with left_as_it_was(module), _put_back(module), _tf32(device, tf32), torch.inference_mode():
        progress("running the source model in PyTorch")
        eager, problem = _tried(lambda: module.to(device), inputs, device)
        compiled, why = None, f"PyTorch cannot run the model: {problem}"
        if eager is not None:
            progress("compiling the source model with torch.compile")
            compiled, why = _tried(lambda: torch.compile(module, backend=backend), inputs, device)
        try:
            yield (
                Baseline("eager", precision, setting, eager, problem),
                Baseline("torch.compile", precision, f"{setting}, {backend}, default mode", compiled, why),
            )
        finally:
            torch.compiler.reset()


def _tried(
    make: Callable[[], Callable[..., object]], inputs: Sequence[Array], device: ExportDevice
) -> tuple[Run | None, str]:
    """Prepare a callable on inputs and run it once; return it, or the reason it fails."""
    import torch

    try:
        tensors = [torch.from_numpy(array).to(device) for array in inputs]
        run = _torch_run(make(), tensors, device)
        run()
    except Exception as error:  # noqa: BLE001 - whatever a model or a compiler raises is the reason
        return None, first_line(error)
    return run, ""


def _torch_run(call: Callable[..., object], tensors: Sequence[torch.Tensor], device: ExportDevice) -> Run:
    import torch

    def run() -> None:
        call(*tensors)
        if device == "cuda":
            torch.cuda.synchronize()

    return run


def _precision_of(module: torch.nn.Module) -> Precision:
    import torch

    lower = {torch.float16: Precision.FP16, torch.bfloat16: Precision.BF16}
    weight = next(module.parameters(), None)
    return lower.get(weight.dtype, Precision.FP32) if weight is not None else Precision.FP32


def _setting(device: ExportDevice, tf32: bool) -> str:
    import torch

    if device == "cpu":
        return f"PyTorch {torch.__version__}, CPU, {torch.get_num_threads()} threads, {machine()}"
    return (
        f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}, TF32 {'on' if tf32 else 'off'}, inputs on the"
        " device, waited for after every run, no CUDA graphs"
    )


@contextmanager
def _put_back(module: torch.nn.Module) -> Iterator[None]:
    """Move a module back to its original device afterwards."""
    weight = next(module.parameters(), None)
    before = weight.device if weight is not None else None
    try:
        yield
    finally:
        if before is not None:
            module.to(before)


@contextmanager
def _tf32(device: ExportDevice, allowed: bool) -> Iterator[None]:
    """Set whether FP32 matrix products and convolutions may use TF32 on the GPU, within a block."""
    import torch

    if device == "cpu":
        yield
        return
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    try:
        products.allow_tf32 = convolutions.allow_tf32 = allowed
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before


_FEWEST, _MOST = 10, 1000


class Latency(NamedTuple):
    """Latency of single runs, in milliseconds; quantiles are None if there were too few runs."""

    median: float
    p95: float | None
    p99: float | None
    repeats: int


def graph_baseline(path: Path, feed: Mapping[str, Array], precision: Precision, threads: int = 1) -> Baseline:
    """Return a graph in ONNX Runtime on the CPU as a baseline."""
    description = f"CPU, {threads} thread{'s' if threads > 1 else ''}, {machine()}"
    try:
        return Baseline("onnxruntime", precision, description, session_run(path, feed, threads))
    except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors have no common base
        return Baseline("onnxruntime", precision, description, problem=first_line(error))


def plan_baseline(make: Callable[[], Run], precision: Precision, setting: str) -> Baseline:
    """Return another plan as a baseline; `make` prepares its runner."""
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
    """Return the record of a plan's latency, and its speedup over each baseline.

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
    timing = latency(plan, clock=clock)
    beside = []
    for baseline in baselines:
        progress(f"measuring the plan beside {baseline_name(_unmeasured(baseline))}, in turns")
        beside.append(_compare_baseline(plan, baseline, about.setting, clock, wall, budget_seconds))
    return about.model_copy(
        update={
            "median_ms": timing.median,
            "p95_ms": timing.p95,
            "p99_ms": timing.p99,
            "repeats": timing.repeats,
            "baselines": tuple(beside),
        }
    )


def latency(run: Run, *, clock: Clock = time.perf_counter, budget_seconds: float = 3.0) -> Latency:
    """Measure the latency of single runs, after warmup runs, within a time budget."""
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
    """Accept plans that are worth their precision: faster than that of the next higher one.

    A plan is refused that is surely slower at the opt shapes of one of its profiles, or surely faster at none; one that
    stands beside no other plan passes.

    Raises:
        GateError: names the profiles and the ratios.
    """
    for capability in dict.fromkeys(speed.plan for speed in speeds):
        beside = [
            (speed, baseline, baseline.speed)
            for speed in speeds
            if speed.plan == capability
            for baseline in speed.baselines
            if baseline.kind == "plan" and baseline.speed is not None
        ]
        verdicts = {ratio.verdict for _, _, ratio in beside}
        if not beside or ("faster" in verdicts and "slower" not in verdicts):
            continue
        speed, baseline, _ = beside[0]
        details = "\n".join(f"  profile {s.profile!r} at {s.shapes}: {_format_ratio(r)}" for s, _, r in beside)
        raise GateError(
            f"the {speed.precision} plan for compute capability {capability} is not faster than that in"
            f" {baseline.precision}:\n{details}",
            remedy=f"nothing was published; use `precision: {baseline.precision}`, or set"
            " `tensorrt: {speed_check: false}` to have it all the same",
        )


def _format_ratio(speed: SpeedRatio) -> str:
    return f"{speed.ratio:.2f} times as fast (95 % interval {speed.low:.2f} to {speed.high:.2f}: {speed.verdict})"


class _Timed:
    """A timed run: records how long each call takes."""

    def __init__(self, run: Run, clock: Clock) -> None:
        self.seconds: list[float] = []
        self._run, self._clock = run, clock

    def __call__(self) -> None:
        before = self._clock()
        self._run()
        self.seconds.append(self._clock() - before)


def _unmeasured(baseline: Baseline) -> BaselineSpeed:
    """The record of a baseline without a measurement."""
    return BaselineSpeed(
        kind=baseline.kind, precision=baseline.precision, setting=baseline.setting, problem=baseline.problem
    )


def _compare_baseline(
    plan: Run, baseline: Baseline, setting: str, clock: Clock, wall: Clock, budget_seconds: float
) -> BaselineSpeed:
    unmeasured = _unmeasured(baseline)
    if baseline.run is None:
        return unmeasured
    try:
        baseline.run()
    except Exception as error:  # noqa: BLE001 - whatever it raises is why there is no figure
        return unmeasured.model_copy(update={"problem": first_line(error)})
    timed = _Timed(baseline.run, clock)
    contest = race(
        {_PLAN: plan, baseline.kind: timed},
        baseline.kind,
        setting=f"the plan: {setting}; the other: {baseline.setting}",
        clock=clock,
        wall=wall,
        budget_seconds=budget_seconds,
    )
    return unmeasured.model_copy(
        update={"speed": contest.result[_PLAN], "median_ms": 1000 * median(timed.seconds[-contest.rounds :])}
    )
