"""Plan evaluation in a child process with a GPU of its own: outputs, layer times, and speed against baselines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from plansmith.compilers.export.loading import load
from plansmith.compilers.trt.evaluation.latency import RunningPlan, measure_plan
from plansmith.compilers.trt.evaluation.requests import EvaluatePlanRequest, PlanFiles
from plansmith.compilers.trt.layers import stored_layers, summarise, timed
from plansmith.data.reference import StoredCases
from plansmith.errors import PlansmithError
from plansmith.records.engine import Engine, LayerSummary
from plansmith.records.model import OnnxModel
from plansmith.records.validation import ValidationReport
from plansmith.system import gpus
from plansmith.system.tasks import Progress
from plansmith.validation.plan_gate import PlanCandidate, in_own_floats, validate_plan
from plansmith.validation.profile_inputs import every_profile, profile_cases

T = TypeVar("T")

_TIMED_RUNS = 20


def evaluate_plan(request: EvaluatePlanRequest, progress: Progress) -> ValidationReport:
    """Run the accuracy gate on a plan and benchmark it, with exclusive use of the GPU."""
    from plansmith.compilers.trt.api.run import open_plan

    plan, above, onnx, folder = request.plan, request.higher, request.onnx, request.reference_folder
    assert plan.lowered is not None
    with ExitStack() as opened:
        opened.enter_context(gpus.lock_gpu(request.gpu, lambda _: progress("waiting for the GPU")))
        runner = opened.enter_context(open_plan(plan.file, **_manner(plan.engine)))
        report = validate_plan(
            PlanCandidate(plan.engine, plan.capability, runner.ask, plan.lowered, plan.recipe),
            onnx,
            folder,
            overrides=request.tolerances,
            progress=progress,
            held_out=request.held_out,
        )
        if report.verdict == "failed":
            return report
        progress("timing the layers")
        times = _layer_times(plan, runner.layer_times, onnx, folder)
        slower = _if_possible(
            lambda: opened.enter_context(open_plan(above.file, **_manner(above.engine))) if above else None, progress
        )
        source = request.source
        speeds = measure_plan(
            RunningPlan(plan.engine, runner.runner_for),
            plan.capability,
            onnx,
            folder,
            source=_if_possible(lambda: load(source) if source else None, progress),
            device="cuda",
            higher=RunningPlan(above.engine, slower.runner_for) if above is not None and slower is not None else None,
            progress=progress,
        )
    return report.model_copy(update={"speeds": speeds, "layers": {plan.capability: times}})


def _if_possible(make: Callable[[], T], progress: Progress) -> T | None:
    """Create a baseline for a plan; where that fails, report it and return None, as the plan is valid without one."""
    try:
        return make()
    except PlansmithError as error:
        progress(f"measuring without it: {error.message}")
        return None


def _manner(engine: Engine) -> dict[str, Any]:
    """The options with which an engine's plans are opened."""
    build = engine.build
    assert build is not None
    return {"plugins": build.plugins, "version_compatible": build.version_compatible}


def _layer_times(
    plan: PlanFiles,
    measure: Callable[[Mapping[str, Any], int, int], Mapping[str, float]],
    onnx: OnnxModel,
    reference_folder: Path,
) -> LayerSummary:
    """The layers with their times at the opt shapes of the first profile."""
    engine = plan.engine
    component = engine.components["model"]
    profiles = every_profile(engine.build.profiles if engine.build else (), component)
    stored = StoredCases(onnx.reference.cases, reference_folder)
    case = next(iter(profile_cases(profiles, stored, component, onnx.mask_input, corners=("opt",))))
    times = measure(in_own_floats(case.feed, engine), case.profile, _TIMED_RUNS)
    record = engine.plans[plan.capability]
    layers = timed(stored_layers(plan.folder / record.layers_file), times)
    return summarise(layers, record.layer_summary.above if record.layer_summary else ())
