"""What a child with a GPU of its own does to judge a plan: answers, times of layers, speed beside others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from plansmith.compilers.export.loading import load
from plansmith.compilers.trt.evaluation.latency import RunningPlan, measure_plan
from plansmith.compilers.trt.inspection.layer_summary import stored_layers, summarise, timed
from plansmith.data.reference import StoredCases
from plansmith.errors import PlansmithError
from plansmith.records.engine import Engine, Gpu, LayerSummary
from plansmith.records.model import OnnxModel, Recipe, Record
from plansmith.records.validation import ToleranceChange
from plansmith.system import gpus
from plansmith.validation.held_out import HeldOut
from plansmith.validation.plan_gate import PlanCandidate, in_own_floats, validate_plan
from plansmith.validation.profile_inputs import every_profile, profile_cases

if TYPE_CHECKING:
    from plansmith.sources.loaded_model import LiveModel

Progress = Callable[[str], None]
T = TypeVar("T")

_TIMED_RUNS = 20


class GivenPlan(Record):
    """A plan of an engine, as it is told to the child.

    `folder` holds the engine's files; `lowered`: the graph that the plan was built from, or its twin that ONNX Runtime
    can run on a CPU; `recipe`: how it was lowered, if it was.
    """

    engine: Engine
    folder: str
    capability: str
    lowered: str = ""
    recipe: Recipe | None = None

    @property
    def file(self) -> Path:
        """The plan."""
        return Path(self.folder, self.engine.plans[self.capability].file)


def judge_plan(
    *,
    plan: Mapping[str, Any],
    higher: Mapping[str, Any] | None,
    gpu: Mapping[str, Any],
    onnx: Mapping[str, Any],
    reference_folder: str,
    source: Mapping[str, Any] | None,
    tolerances: Mapping[str, Any],
    held_out: Mapping[str, Any] | None,
    progress: Progress,
) -> dict[str, Any]:
    """Run the gate on a plan, and measure it; the GPU is this process's alone meanwhile.

    Args:
        plan: a `GivenPlan`.
        higher: likewise, of the next higher precision; None where there is none to be faster than.
        gpu: the one that this process sees.
        onnx: the exported graph and its reference.
        reference_folder: where that lies.
        source: what `loading.load` takes, for the speed of PyTorch; None for an ONNX file.
        tolerances: what differs from the defaults, by output.
        held_out: samples that nothing has looked at before.
        progress: told what is at work.

    Returns:
        The report, a ValidationReport.
    """
    from plansmith.compilers.trt.api.run import open_plan

    given, exported, folder = GivenPlan.model_validate(plan), OnnxModel.model_validate(onnx), Path(reference_folder)
    with ExitStack() as opened:
        opened.enter_context(gpus.held(Gpu.model_validate(gpu), lambda _: progress("waiting for the GPU")))
        runner = opened.enter_context(open_plan(given.file, **_manner(given.engine)))
        report = validate_plan(
            PlanCandidate(
                given.engine,
                given.capability,
                runner.ask,
                Path(given.lowered),
                given.recipe,
            ),
            exported,
            folder,
            overrides={name: ToleranceChange.model_validate(change) for name, change in tolerances.items()},
            progress=progress,
            held_out=HeldOut.model_validate(held_out) if held_out is not None else None,
        )
        if report.verdict == "failed":
            return report.model_dump(mode="json")
        progress("timing the layers")
        times = _layer_times(given, runner.layer_times, exported, folder)
        above = GivenPlan.model_validate(higher) if higher is not None else None
        slower = _if_possible(
            lambda: opened.enter_context(open_plan(above.file, **_manner(above.engine))) if above else None, progress
        )
        speeds = measure_plan(
            RunningPlan(given.engine, runner.runner_for),
            given.capability,
            exported,
            folder,
            source=_if_possible(
                lambda: load(**{**source, "folder": Path(source["folder"])}) if source else None, progress
            ),
            device="cuda",
            higher=RunningPlan(above.engine, slower.runner_for) if above is not None and slower is not None else None,
            progress=progress,
        )
    return report.model_copy(update={"speeds": speeds, "layers": {given.capability: times}}).model_dump(mode="json")


def _if_possible(make: Callable[[], T], progress: Progress) -> T | None:
    """What a plan is compared with; None, and told, where it cannot be had: the plan is as good without it."""
    try:
        return make()
    except PlansmithError as error:
        progress(f"measuring without it: {error.message}")
        return None


def _loaded(source: Mapping[str, Any]) -> LiveModel:
    return load(**{**source, "folder": Path(source["folder"])})


def _manner(engine: Engine) -> dict[str, Any]:
    """How the plans of an engine are opened."""
    build = engine.build
    assert build is not None
    return {"plugins": build.plugins, "version_compatible": build.version_compatible}


def _layer_times(
    given: GivenPlan,
    measure: Callable[[Mapping[str, Any], int, int], Mapping[str, float]],
    onnx: OnnxModel,
    reference_folder: Path,
) -> LayerSummary:
    """The layers with how long they take at the opt shapes of the first profile."""
    engine = given.engine
    component = engine.components["model"]
    profiles = every_profile(engine.build.profiles if engine.build else (), component)
    stored = StoredCases(onnx.reference.cases, reference_folder)
    case = next(iter(profile_cases(profiles, stored, component, onnx.mask_input, corners=("opt",))))
    times = measure(in_own_floats(case.feed, engine), case.profile, _TIMED_RUNS)
    known = engine.plans[given.capability]
    layers = timed(stored_layers(Path(given.folder, known.layers_file)), times)
    return summarise(layers, known.layer_summary.above if known.layer_summary else ())
