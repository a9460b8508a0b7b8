"""Plan latency at the opt shape of each profile, compared with the source model and the next higher precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.compilers.precision.benchmark import Run
from plansmith.compilers.trt.evaluation.baselines import Baseline, plan_baseline, plan_speed, pytorch
from plansmith.data.reference import StoredCases
from plansmith.records.engine import Engine
from plansmith.records.model import ExportDevice, OnnxModel, Precision
from plansmith.records.validation import PlanSpeed
from plansmith.validation.plan_gate import in_own_floats
from plansmith.validation.profile_inputs import CornerCase, every_profile, profile_cases

if TYPE_CHECKING:
    from plansmith.records.arrays import Arrays
    from plansmith.sources.loaded_model import LoadedModel


RunnerFor = Callable[["Arrays", int], Run]
"""Makes of inputs, and of a profile's place, one execution of a plan that is waited for."""

ON_DEVICE = "inputs and outputs stay on the GPU, waited for after every run, no CUDA graphs"
"""How `compilers.trt.running` runs a plan."""

NO_SOURCE = "the source is an ONNX file: there is no PyTorch model"


@dataclass(frozen=True)
class RunningPlan:
    """A running plan.

    Args:
        engine: its record, for the interface, the precision and the profiles.
        runner_for: makes executions of it.
        setting: what is on while it runs (CUDA graphs, spin wait, transfers), in words.
    """

    engine: Engine
    runner_for: RunnerFor
    setting: str = ON_DEVICE

    def at(self, case: CornerCase) -> Run:
        """Return one execution at a corner of a profile."""
        return self.runner_for(in_own_floats(case.feed, self.engine), case.profile)


def measure_plan(
    plan: RunningPlan,
    capability: str,
    onnx: OnnxModel,
    reference_folder: Path,
    *,
    source: LoadedModel | None,
    device: ExportDevice,
    higher: RunningPlan | None = None,
    budget_seconds: float = 30.0,
    progress: Callable[[str], None],
) -> tuple[PlanSpeed, ...]:
    """Benchmark a plan at the opt shapes of every profile, in turns with each baseline.

    What cannot be measured is a reason in the record and no error.

    Args:
        plan: what is measured.
        capability: the compute capability that it is for.
        onnx: the exported graph, which holds the reference set that inputs are made of.
        reference_folder: where the reference's files lie.
        source: the source model; None where there is only an ONNX file.
        device: where the source model runs.
        higher: the plan of the next higher precision, with the same profiles.
        budget_seconds: how long one race may take.
        progress: told what is at work.
    """
    engine = plan.engine
    component = engine.components["model"]
    profiles = every_profile(engine.build.profiles if engine.build else (), component)
    stored = StoredCases(onnx.reference.cases, reference_folder)
    speeds = []
    for case in profile_cases(profiles, stored, component, onnx.mask_input, corners=("opt",)):
        about = PlanSpeed(
            plan=capability,
            profile=case.name,
            precision=engine.precision,
            shapes=case.shapes,
            median_ms=0,
            p95_ms=None,
            p99_ms=None,
            repeats=0,
            setting=plan.setting,
        )
        with _source(source, case, device, tf32=bool(engine.build and engine.build.tf32), progress=progress) as others:
            beside = [*others]
            if higher is not None:
                beside.append(plan_baseline(partial(higher.at, case), higher.engine.precision, higher.setting))
            speeds.append(plan_speed(plan.at(case), about, beside, budget_seconds=budget_seconds, progress=progress))
    return tuple(speeds)


@contextmanager
def _source(
    source: LoadedModel | None, case: CornerCase, device: ExportDevice, *, tf32: bool, progress: Callable[[str], None]
) -> Iterator[tuple[Baseline, ...]]:
    """The source model in eager mode and with `torch.compile`."""
    names = [tensor.name for tensor in source.inputs.tensors] if source else []
    missing = [name for name in names if name not in case.feed]
    problem = f"the graph has no input {', '.join(missing)}, which the model takes" if missing else ""
    if source is None or problem:
        reason = problem or NO_SOURCE
        yield (
            Baseline("eager", Precision.FP32, device, problem=reason),
            Baseline("torch.compile", Precision.FP32, device, problem=reason),
        )
        return
    inputs = [case.feed[name] for name in names]
    with pytorch(source.module, inputs, device, tf32=tf32, progress=progress) as reference:
        yield reference
