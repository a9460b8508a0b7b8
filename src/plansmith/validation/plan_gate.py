"""Accuracy gate of TensorRT plans: at the corners of the profiles, and by the common gate where shapes allow.

At min, opt and max of every optimization profile the plan answers real inputs beside two graphs that ONNX Runtime runs
on the CPU with the same ones: the lowered graph that it was built from, which shows what TensorRT did, and the FP32
graph, which shows what everything did together. The stored reference cases and the held-out samples that a profile
takes are judged as they are for any engine.

Both are held to the limits of the plan's precision. Two correct runs of one graph in a precision are as far apart as
that precision's roundings, which its limits were measured for; for INT8 nobody has measured yet on TensorRT how much
nearer the same Q/DQ graph stays, so that its wide limits hold there too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.data.reference import StoredCases, stored_part
from plansmith.errors import GateError, PlansmithError, first_line
from plansmith.records.engine import BuildSpec, Engine, Gpu, OptimizationProfile, Plan
from plansmith.records.model import Case, EngineKind, OnnxModel, Precision, Recipe
from plansmith.records.validation import (
    AGAINST,
    Against,
    CornerComparison,
    OutputComparison,
    ToleranceChange,
    ValidationReport,
)
from plansmith.validation.comparison import Padding
from plansmith.validation.coverage import UNTRIED_KERNELS, never_ran
from plansmith.validation.gate import Candidate, CandidateRunner, compare_case, refuse_constants, validate
from plansmith.validation.onnxruntime_runner import LOWER_FLOATS, asking, in_exported_floats
from plansmith.validation.profile_inputs import CornerCase, every_profile, profile_cases, profile_for
from plansmith.validation.verdict import HeldOut

if TYPE_CHECKING:
    from plansmith.records.arrays import Arrays


AskPlan = Callable[["Arrays", int], "Arrays"]
"""Gives a plan's answer to inputs, by the profile at this place."""

_Asked = Callable[[Case, "Arrays", int], "Arrays"]

_FIRST_WITH_TF32 = 8
"""The major compute capability from which on tensor cores compute in TF32."""


@dataclass(frozen=True)
class PlanCandidate:
    """Plan candidate: a plan that can be run.

    Args:
        engine: its record; the component's file is not read.
        capability: the compute capability of the plan that answers, its key in `engine.plans`.
        ask: gives the plan's answers, in the dtypes of the component.
        lowered: the graph that the plan was built from, or its twin that ONNX Runtime can run on a CPU.
        recipe: how this was lowered; None: it was not.
    """

    engine: Engine
    capability: str
    ask: AskPlan
    lowered: Path
    recipe: Recipe | None = None

    @property
    def plan(self) -> Plan:
        """The plan's record."""
        return self.engine.plans[self.capability]

    @property
    def build(self) -> BuildSpec:
        """The plan's build spec."""
        assert self.engine.build is not None
        return self.engine.build


def validate_plan(
    candidate: PlanCandidate,
    onnx: OnnxModel,
    reference_folder: Path,
    *,
    overrides: Mapping[str, ToleranceChange],
    progress: Callable[[str], None],
    held_out: HeldOut | None = None,
) -> ValidationReport:
    """Validate a plan at the corners of its profiles, on the stored cases and on the held-out samples.

    Args:
        candidate: the plan.
        onnx: the exported graph, which holds the reference set and its mask.
        reference_folder: where the exported graph and the reference's files lie.
        overrides: what differs from the defaults of the precision, by output.
        progress: told what is at work.
        held_out: samples that nothing has looked at before.

    Raises:
        UsageError: a tolerance for an output that the model does not have, a measure that it cannot have, or a profile
            that does not fit its inputs.
        GateError: the plan fails where it is asked, has another interface, or was made with the samples that it shall
            be judged on; what it answers wrongly stands in the report.
    """
    engine = candidate.engine
    component = engine.components["model"]
    profiles = every_profile(candidate.build.profiles, component)
    ask = _asking(candidate, onnx)
    report = validate(
        Candidate(engine, candidate.lowered.parent, candidate.recipe, own_way=_own_way(candidate, profiles, ask)),
        onnx,
        reference_folder,
        overrides=overrides,
        progress=progress,
        held_out=held_out,
    )
    stored = StoredCases(onnx.reference.cases, reference_folder)
    comparisons: list[CornerComparison] = []
    with ExitStack() as opened:
        outputs = onnx.components["model"].outputs
        graphs = {
            against: opened.enter_context(
                asking(path, component.outputs, outputs, precision, engine=EngineKind.TENSORRT, name=AGAINST[against])
            )
            for against, path, precision in _graphs(candidate, onnx, reference_folder)
        }
        for case in profile_cases(profiles, stored, component, onnx.mask_input):
            progress(f"comparing at {case.case.name} ({case.shapes})")
            answer = ask(case.case, case.feed, case.profile)
            for against, graph in graphs.items():
                beside = stored_part(case.case.name, case.feed, graph(case.case, case.feed))
                padding = Padding(component.inputs, onnx.mask_input)
                compared = compare_case(answer, beside, component.outputs, report.tolerances, padding)
                comparisons += [_corner(candidate.capability, case, against, c) for c in compared]
    corners = _refuse_constants(comparisons)
    failed = report.verdict == "failed" or any(c.found.failures for c in corners)
    left_out = (*_left_out(report, held_out), *never_ran(engine, {candidate.capability}))
    return report.model_copy(
        update={
            "verdict": "failed" if failed else "passed",
            "ran": (candidate.capability,),
            "at_corners": tuple(corners),
            "not_validated": (
                *(line for line in report.not_validated if line not in UNTRIED_KERNELS.values()),
                *left_out,
            ),
        }
    )


def limits_of(precision: Precision, build: BuildSpec, gpu: Gpu) -> Precision:
    """Return the precision whose limits apply to a plan: its own, but FP16 for FP32 computed in TF32.

    TF32 keeps FP16's ten bits of a product's factors (NVIDIA's Ampere architecture whitepaper); FP32's limits are a
    thousand times narrower than FP16's.
    """
    has_tf32 = int(gpu.compute_capability.partition(".")[0]) >= _FIRST_WITH_TF32
    return Precision.FP16 if precision is Precision.FP32 and build.tf32 and has_tf32 else precision


def in_own_floats(feed: Arrays, engine: Engine) -> Arrays:
    """Convert float inputs to the engine's precision, if it takes them in that."""
    lower = LOWER_FLOATS.get(engine.precision)
    dtypes = {t.name: t.dtype for t in engine.components["model"].inputs if t.dtype == lower}
    return {name: array.astype(dtypes.get(name, array.dtype), copy=False) for name, array in feed.items()}


def _own_way(candidate: PlanCandidate, profiles: Sequence[OptimizationProfile], ask: _Asked) -> CandidateRunner:
    """A runner for the plan, called through the optimization profile that Triton would select."""
    precision, plan = candidate.engine.precision, candidate.plan
    limits = limits_of(precision, candidate.build, plan.gpu)
    description = f"TensorRT {plan.tensorrt} on {plan.gpu.name}, {precision}"

    def by_profile(case: Case, feed: Arrays) -> Arrays:
        profile = profile_for(profiles, feed)
        assert profile is not None, "nobody asks about inputs that no profile takes"
        return ask(case, feed, profile)

    return CandidateRunner(
        ask=by_profile,
        takes=lambda feed: profile_for(profiles, feed) is not None,
        description=description if limits is precision else f"{description} computed in TF32",
        limits_of=limits,
    )


def _asking(candidate: PlanCandidate, onnx: OnnxModel) -> _Asked:
    """Call the plan with the exported model's float types, whatever its own are."""
    component, precision = candidate.engine.components["model"], candidate.engine.precision
    exported = onnx.components["model"].outputs

    def ask(case: Case, feed: Arrays, profile: int) -> Arrays:
        try:
            answer = candidate.ask(in_own_floats(feed, candidate.engine), profile)
        except PlansmithError:
            raise
        except Exception as error:
            raise GateError(
                f"the plan fails at {case.name}: {first_line(error)}",
                remedy="nothing was published; read the log, and compile again with --force",
            ) from error
        missing = [t.name for t in component.outputs if t.name not in answer]
        if missing:
            raise GateError(
                f"the plan has no output {', '.join(missing)} at {case.name}",
                remedy="nothing was published; please report this with the log",
            )
        return in_exported_floats(answer, component.outputs, exported, precision)

    return ask


def _graphs(
    candidate: PlanCandidate, onnx: OnnxModel, reference_folder: Path
) -> Iterator[tuple[Against, Path, Precision]]:
    """Yield the graphs to compare the plan with: only one where nothing was lowered, as both are the same then."""
    exported = reference_folder / onnx.components["model"].file
    if candidate.recipe is not None or onnx.precision is not Precision.FP32:
        yield "lowered", candidate.lowered, candidate.engine.precision
    if onnx.precision is Precision.FP32:
        yield "fp32", exported, Precision.FP32


def _corner(plan: str, case: CornerCase, against: Against, comparison: OutputComparison) -> CornerComparison:
    return CornerComparison(plan=plan, profile=case.name, corner=case.corner, against=against, found=comparison)


def _refuse_constants(corners: Sequence[CornerComparison]) -> list[CornerComparison]:
    """Fail every output that is constant across different inputs at all corners."""
    judged: dict[Against, Iterator[OutputComparison]] = {
        against: iter(refuse_constants([c.found for c in corners if c.against == against]))
        for against in {c.against for c in corners}
    }
    return [c.model_copy(update={"found": next(judged[c.against])}) for c in corners]


def _left_out(report: ValidationReport, held_out: HeldOut | None) -> Iterator[str]:
    """Yield a notice about samples that lie outside of all optimization profiles."""
    samples = held_out.data.evaluation if held_out is not None else None
    if samples is None:
        return
    missing = report.evaluation.left_out if report.evaluation else samples.count
    if missing:
        yield f"{missing} of {samples.count} held-out samples: no optimization profile takes inputs of their shapes"
