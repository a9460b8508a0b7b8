"""What a child with a GPU of its own does to judge a plan: answers, times of layers, speed beside others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from plansmith.compilers.export.loading import load
from plansmith.compilers.trt.evaluation.latency import RunningPlan, measure_plan
from plansmith.compilers.trt.evaluation.requests import EvaluatePlanRequest, PlanFiles
from plansmith.compilers.trt.inspection.layer_summary import stored_layers, summarise, timed
from plansmith.data.reference import StoredCases
from plansmith.errors import PlansmithError
from plansmith.records.engine import Engine, LayerSummary
from plansmith.records.model import OnnxModel
from plansmith.records.validation import ValidationReport
from plansmith.system import gpus
from plansmith.validation.plan_gate import PlanCandidate, in_own_floats, validate_plan
from plansmith.validation.profile_inputs import every_profile, profile_cases

Progress = Callable[[str], None]
T = TypeVar("T")

_TIMED_RUNS = 20


def evaluate_plan(request: EvaluatePlanRequest, progress: Progress) -> ValidationReport:
    """Run the gate on a plan, and measure it; the GPU is this process's alone meanwhile."""
    from plansmith.compilers.trt.api.run import open_plan

    plan, above, onnx, folder = request.plan, request.higher, request.onnx, request.reference_folder
    assert plan.lowered is not None
    with ExitStack() as opened:
        opened.enter_context(gpus.held(request.gpu, lambda _: progress("waiting for the GPU")))
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
    """What a plan is compared with; None, and told, where it cannot be had: the plan is as good without it."""
    try:
        return make()
    except PlansmithError as error:
        progress(f"measuring without it: {error.message}")
        return None


def _manner(engine: Engine) -> dict[str, Any]:
    """How the plans of an engine are opened."""
    build = engine.build
    assert build is not None
    return {"plugins": build.plugins, "version_compatible": build.version_compatible}


def _layer_times(
    plan: PlanFiles,
    measure: Callable[[Mapping[str, Any], int, int], Mapping[str, float]],
    onnx: OnnxModel,
    reference_folder: Path,
) -> LayerSummary:
    """The layers with how long they take at the opt shapes of the first profile."""
    engine = plan.engine
    component = engine.components["model"]
    profiles = every_profile(engine.build.profiles if engine.build else (), component)
    stored = StoredCases(onnx.reference.cases, reference_folder)
    case = next(iter(profile_cases(profiles, stored, component, onnx.mask_input, corners=("opt",))))
    times = measure(in_own_floats(case.feed, engine), case.profile, _TIMED_RUNS)
    known = engine.plans[plan.capability]
    layers = timed(stored_layers(plan.folder / known.layers_file), times)
    return summarise(layers, known.layer_summary.above if known.layer_summary else ())
