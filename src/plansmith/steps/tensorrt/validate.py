"""Accuracy gate of TensorRT plans in the driver: each plan on a GPU of its kind, in its own child process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from plansmith.compilers.trt.evaluation.baselines import require_faster
from plansmith.compilers.trt.evaluation.requests import EvaluatePlanRequest, PlanFiles
from plansmith.config.spec import ModelSpec
from plansmith.errors import EnvironmentFault
from plansmith.records.engine import Engine, Gpu, Plan
from plansmith.records.model import DataSet, LoweredModel, OnnxModel, SourceModel
from plansmith.records.validation import ValidationReport
from plansmith.steps.fetch import load_request
from plansmith.steps.runner import WORKER_MODULE, StageRunner, StepResult
from plansmith.steps.worker import tasks
from plansmith.system import gpus
from plansmith.system.gpu_catalog import is_kind
from plansmith.system.process import Worker
from plansmith.validation.verdict import HeldOut, require_passed


@dataclass(frozen=True)
class PlanValidationInputs:
    """An engine with plans, and the inputs of its validation.

    `higher`: the plans of the next higher precision; None where there is none to be faster than.
    """

    engine: StepResult[Engine]
    source: StepResult[SourceModel]
    onnx: StepResult[OnnxModel]
    lowered: StepResult[LoweredModel]
    data: StepResult[DataSet] | None
    higher: StepResult[Engine] | None


def validate_plans(
    stages: StageRunner, spec: ModelSpec, judged: PlanValidationInputs, *, require: Callable[[ValidationReport], None]
) -> StepResult[ValidationReport] | None:
    """Run every plan on a GPU of its type, compare it with the lowered graph and FP32, and benchmark it.

    Args:
        stages: the compile's steps.
        spec: says what is allowed.
        judged: the plans, and what they are judged by.
        require: raises where the plans must not be used; see `require_plans`.

    Raises:
        GateError: a plan answers wrongly, or is not faster than that of the next higher precision.
        EnvironmentFault: no GPU of a plan's kind is here, and nobody judged it before.
    """
    parameters = {
        "of": "plans",
        "tolerances": {k: v.model_dump(exclude_none=True) for k, v in spec.tolerances.items()},
        "max_metric_drop": spec.data.max_metric_drop if spec.data else None,
    }

    def build(_: Path) -> ValidationReport:
        return combined_report([_judged(stages, spec, judged, capability) for capability in judged.engine.record.plans])

    every = (judged.engine, judged.onnx, judged.lowered, judged.data, judged.higher)
    inputs = [step.digest for step in every if step is not None]
    return stages.stage("validate", ValidationReport, inputs, parameters, build, require=require, tools="measure")


def require_plans(report: ValidationReport, *, speed_check: bool) -> None:
    """Accept plans that are accurate and, if required, faster than those of the next higher precision.

    Raises:
        GateError: they are not.
    """
    require_passed(report)
    if speed_check:
        require_faster(report.speeds)


def combined_report(reports: Sequence[ValidationReport]) -> ValidationReport:
    """Return one report for all plans of a release.

    The first failed one, or else the first, with the others' additions.
    """
    first = next((report for report in reports if report.verdict == "failed"), reports[0])
    if len(reports) == 1:
        return first
    untried = [line for report in reports for line in report.not_validated]
    return first.model_copy(
        update={
            "candidate": "; ".join(report.candidate for report in reports),
            "comparisons": tuple(
                comparison.model_copy(update={"case": f"{comparison.case} on {report.ran[0]}"})
                for report in reports
                for comparison in report.comparisons
            ),
            "ran": tuple(capability for report in reports for capability in report.ran),
            "at_corners": tuple(corner for report in reports for corner in report.at_corners),
            "speeds": tuple(speed for report in reports for speed in report.speeds),
            "layers": {
                capability: layer_summary for report in reports for capability, layer_summary in report.layers.items()
            },
            "not_validated": tuple(dict.fromkeys(line for line in untried if "did not run here" not in line)),
        }
    )


def _judged(stages: StageRunner, spec: ModelSpec, judged: PlanValidationInputs, capability: str) -> ValidationReport:
    """Return the report on one plan, from the cache or from a GPU of its kind."""
    plan, spec_data = judged.engine.record.plans[capability], spec.data
    tolerances = {k: v.model_dump(exclude_none=True) for k, v in spec.tolerances.items()}
    max_drop = spec_data.max_metric_drop if spec_data else None
    data, engine = judged.data, judged.engine
    higher = judged.higher if judged.higher and capability in judged.higher.record.plans else None
    held_out = HeldOut(data=data.record, folder=data.folder, max_metric_drop=max_drop) if data else None

    def ask(_: Path) -> ValidationReport:
        gpu = _gpu_for(plan)
        stages.end_worker()  # its memory is the judge's now
        log, environment = stages.log_file("judge"), gpus.environment_of(gpu)
        with Worker(WORKER_MODULE, log, stages.progress, environment=environment) as worker:
            request = EvaluatePlanRequest(
                plan=_plan_files(judged.engine, capability, judged.lowered),
                higher=_plan_files(higher, capability) if higher else None,
                gpu=gpu,
                onnx=judged.onnx.record,
                reference_folder=judged.onnx.folder,
                # Of an ONNX file there is no PyTorch model, whose speed would tell something.
                source=None if judged.source.record.scheme == "onnx" else load_request(spec, judged.source),
                tolerances=spec.tolerances,
                held_out=held_out,
            )
            return tasks.EVALUATE_PLAN.run(worker, request)

    # By the plan itself: the engine around it is another one on every machine, until all plans are built.
    plans = [
        stages.digester.file(step.folder / step.record.plans[capability].file) for step in (engine, higher) if step
    ]
    others = [step.digest for step in (judged.onnx, judged.lowered, data) if step is not None]
    build = engine.record.build.model_dump(mode="json", exclude={"plugins"}) if engine.record.build else None
    parameters = {
        "of": "plan",
        "capability": capability,
        "build": build,
        "tolerances": tolerances,
        "max_metric_drop": max_drop,
    }
    result = stages.entry("validate", [*plans, *others], parameters, ask, tools="measure")
    assert result is not None, "plans that are judged are no look"
    entry, _ = result
    return ValidationReport.model_validate(entry.record)


def _plan_files(
    engine: StepResult[Engine], capability: str, lowered: StepResult[LoweredModel] | None = None
) -> PlanFiles:
    """Return a plan and its location; with its graph if it is validated and not only timed."""
    plan = PlanFiles(engine=engine.record, folder=engine.folder, capability=capability)
    if lowered is None:
        return plan
    graph = lowered.folder / (lowered.record.runnable or lowered.record.components["model"].file)
    return plan.model_copy(update={"lowered": graph, "recipe": lowered.record.recipe})


def _gpu_for(plan: Plan) -> Gpu:
    """Return a GPU of this machine of the plan's kind.

    Raises:
        EnvironmentFault: there is none.
    """
    match = next((gpu for gpu in gpus.visible_gpus() if is_kind(gpu, plan.gpu)), None)
    if match is None:
        raise EnvironmentFault(
            f"the plan for {plan.gpu.name} was never run, and no such GPU is here: nobody knows whether it is right",
            remedy="run the same command on a machine with that GPU, with the same --artifacts or --shared-cache",
        )
    return match
