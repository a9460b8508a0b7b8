"""Compilation: the steps of its models and its release, executed in order or only planned.

The lists of steps are `MODEL_STEPS` and `RELEASE_STEPS`; a run, a dry run and a look ahead walk the same ones. What is
heavy is done by one worker process, started when the first such step is not in the cache.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from plansmith.attestations.slsa import builder_id
from plansmith.config.spec import ModelSpec
from plansmith.errors import EnvironmentFault, PlansmithError, UsageError, require_all
from plansmith.records.destination import Publication
from plansmith.records.engine import Engine
from plansmith.records.model import EngineKind, Precision
from plansmith.records.release import LOWERED_FILE, Fingerprint, LoweredGraph, Manifest, PublishedVersion, StepRecord
from plansmith.records.validation import ValidationReport
from plansmith.steps.artifacts import CompiledModel, companion_specs
from plansmith.steps.cache import toolchain
from plansmith.steps.context import ModelContext, graph_context, start_stages
from plansmith.steps.lower import require_kernels
from plansmith.steps.model_steps import GRAPH_STEPS, MODEL_STEPS, model_context, with_plans
from plansmith.steps.pipeline import require_compatible, uses_dali
from plansmith.steps.provenance.fingerprint import build_inputs
from plansmith.steps.provenance.history import HISTORY, History, Run, recorded
from plansmith.steps.release.publish import Deliveries, ReleaseArtifacts
from plansmith.steps.release.release_steps import RELEASE_STEPS, ReleaseContext, ReleaseState
from plansmith.steps.runner import Listener, StepResult, companion_label
from plansmith.steps.sample import may_need_samples
from plansmith.steps.script import script_of
from plansmith.steps.validate import ValidationInputs, validate_engine
from plansmith.steps.walk import StepExecutor, run_inline, walk
from plansmith.system.digest import Digester
from plansmith.system.files import fsync_tree, make_folder, move_into_place, require_writable, scratch_folder
from plansmith.system.libraries import require_library
from plansmith.triton.config.option_rules import require_served
from plansmith.triton.repository.repository import ModelRepository
from plansmith.validation.verdict import require_passed

if TYPE_CHECKING:
    from plansmith.steps.tensorrt.graph import PlanGraph
    from plansmith.steps.tensorrt.preview import BuildPreview
    from plansmith.triton.server.runtime import ServingRuntime

_RENDERED = "the report is rendered with it"

STEPS = tuple(step.name for steps in (MODEL_STEPS, RELEASE_STEPS) for step in steps)


@dataclass(frozen=True)
class _Judged:
    """Lowered graph with its accuracy assessment and the findings of its build check."""

    compiled: CompiledModel
    validation: ValidationReport
    checked: PlanGraph | None


def lower_model(
    spec: ModelSpec, out: Path | None, *, relative_to: Path, listener: Listener | None = None
) -> LoweredGraph:
    """Fetch, export, lower and validate a model, and write the graph into a folder atomically.

    Args:
        spec: what is wanted.
        out: where the graph goes, and nothing may be yet; a folder of the model's name and precision when None.
        relative_to: the folder that a source directory, and data, in the spec start from.
        listener: told how it goes.

    Raises:
        PlansmithError: located at the step that failed; nothing was written.
    """
    context = graph_context(spec, relative_to, lambda: start_stages(spec, relative_to, listener=listener))
    try:
        return _lower_into(context, out or Path(f"{context.name}-{spec.precision}"))
    finally:
        context.stages.close()


def _lower_into(context: ModelContext, out: Path) -> LoweredGraph:
    spec = context.spec
    _require_sense(spec)
    require_kernels(spec, context.name, context.target)
    require_library("jinja2", "compile", purpose=_RENDERED)
    if out.exists():
        raise UsageError(f"{out} is there already", remedy="name another --output, or move it away", model=context.name)
    judgement = _judged(with_plans(context) if spec.tensorrt.check_build else context)
    compiled, lowered = judgement.compiled, judgement.compiled.lowered
    record = LoweredGraph(
        name=context.name,
        folder=str(out),
        lowered=lowered.record,
        data=compiled.data.record if compiled.data else None,
        validation=judgement.validation,
        build_check=judgement.checked.check if judgement.checked is not None else None,
    )
    make_folder(out.parent)
    with scratch_folder("lower", out.parent) as scratch:
        staged = Path(scratch) / out.name
        staged.mkdir()
        for component in record.lowered.components.values():
            for file in component.files:
                shutil.copyfile(lowered.folder / file, staged / file)
        if judgement.checked is not None and judgement.checked.layers_file is not None:
            shutil.copyfile(judgement.checked.layers_file, staged / judgement.checked.layers_file.name)
        (staged / LOWERED_FILE).write_text(record.model_dump_json(indent=2))
        fsync_tree(staged)
        move_into_place(staged, out)
    return record


def _judged(context: ModelContext) -> _Judged:
    compiled = walk(GRAPH_STEPS, context, CompiledModel()).state
    lowered = compiled.lowered
    checked = context.plans.check(compiled.onnx, lowered) if context.plans is not None else None
    # On a CPU, whatever will run it in the end: what is wrong here needs no GPU to show.
    engine = Engine(
        kind=EngineKind.ONNXRUNTIME,
        components=lowered.record.components,
        precision=lowered.record.precision,
        options={},
        toolchain={"onnxruntime": toolchain.step_toolchain("compile")["onnxruntime"]},
    )
    candidate = StepResult(engine, lowered.folder, lowered.digest, lowered.cached)
    judged = ValidationInputs(candidate, compiled.onnx, lowered, compiled.data)
    report = validate_engine(context.stages, context.spec, judged, require=context.with_report(require_passed))
    assert report is not None, "what is lowered is no look"
    return _Judged(compiled, report.record, checked)


def _require_reachable(urls: Sequence[str]) -> None:
    """Require that every Triton that has to load the release answers."""
    if urls:
        from plansmith.triton.server.live import ServerGroup

        ServerGroup(urls).require_reachable()


def _require_libraries() -> None:
    """Require the libraries that describe a release."""
    require_library("jinja2", "compile", purpose=_RENDERED)
    require_library("in_toto_attestation", "compile", purpose="the provenance is written with it")
    require_library("cyclonedx", "compile", purpose="the bill of materials is written with it")


def _require_sense(spec: ModelSpec) -> None:
    """Refuse a lowering that is impossible, or whose result could not be run."""
    if spec.precision is Precision.FP32:
        raise UsageError(
            "a model is exported in fp32, so that there is nothing to lower",
            remedy="say what to lower it to: --precision int8, fp8, fp16, bf16 or auto",
        )
    if spec.engine not in {EngineKind.ONNXRUNTIME, EngineKind.TENSORRT}:
        raise UsageError(
            f"engine {spec.engine} runs no graph, so that there is nothing to lower for it",
            remedy="use --engine onnxruntime or tensorrt",
        )
    if spec.precision == "auto" and spec.engine is not EngineKind.ONNXRUNTIME:
        raise UsageError(
            f"auto goes by speed, and {spec.engine} is not here to be timed",
            remedy="choose --precision int8, fp8, fp16 or bf16, or --engine onnxruntime",
        )


class Compilation:
    """Compilation of one model, from source to published version.

    Args:
        spec: what is wanted.
        relative_to: the folder that a source directory, and data, in the spec start from.
        listener: told how it goes.
        dry: look only.
        digester: hashes files; one of its own when None.

    Attributes:
        context: what the steps share.

    Raises:
        PlansmithError: what can be known to be wrong before any work is done.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        relative_to: Path,
        listener: Listener | None = None,
        dry: bool = False,
        digester: Digester | None = None,
    ) -> None:
        own = model_context(
            spec, relative_to, lambda: start_stages(spec, relative_to, listener=listener, dry=dry, digester=digester)
        )
        self._stages = own.stages
        artifacts = Path(spec.artifacts).absolute()
        repository = ModelRepository(Path(spec.repository or artifacts / "repository"), self._stages.digester)
        self._no_server: PlansmithError | None = None
        self._runtime: ServingRuntime | None = None
        require_all(
            lambda: require_served(spec, own.name, own.target.device, relative_to),
            lambda: repository.require_target(own.target.name),
            *([] if dry else [_require_libraries, builder_id]),
            lambda: self._find_runtime(own),
        )
        beside = {
            name: self._context_beside(own, name, companion) for name, companion in companion_specs(own.spec).items()
        }
        if spec.pipeline is not None and (beside or spec.pipeline.script):
            with own.located("join"):
                require_compatible(
                    {name: (companion.spec, companion.reference) for name, companion in {"": own, **beside}.items()}
                )
        with own.located("script"):
            script = script_of(spec, relative_to)
        with own.located("publish"):
            deliveries = Deliveries(spec, relative_to=relative_to, repository=repository, stages=self._stages)
        self.context = ReleaseContext(own, repository, deliveries, self._runtime, beside, script)
        self._looked_at = CompiledModel()
        self._history = History(artifacts / HISTORY)
        if not dry:
            for place in (artifacts, repository.root, repository.store):
                require_writable(place)
            _require_reachable(spec.load_into)
            with own.located("publish"):
                deliveries.require_open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stages.close()

    @property
    def name(self) -> str:
        """The model's name."""
        return self.context.model.name

    @property
    def steps(self) -> list[StepRecord]:
        """The records of the steps so far."""
        return self._stages.records

    def run(self, execute: StepExecutor = run_inline) -> tuple[PublishedVersion, Manifest]:
        """Run all steps, from source to published version; the manifest records this run.

        Args:
            execute: carries each step out; an orchestrator puts its own surroundings around them.

        Raises:
            PlansmithError: located at the step that failed; nothing was published.
        """
        model = self.context.model
        with recorded(Run(self._stages, model.spec, self.name, self.context.repository.root), self._history):
            self._require_buildable()
            before = self._surroundings()
            compiled_model = walk(MODEL_STEPS, model, CompiledModel(), execute).state
            released = walk(
                RELEASE_STEPS, self.context, ReleaseState(ReleaseArtifacts(compiled_model, before)), execute
            ).state
        assert released.published is not None
        return released.published

    def _look(self) -> tuple[CompiledModel, str]:
        """Return the cached results of the model, and the first step that a run would have to execute, if any."""
        walked = walk(MODEL_STEPS, self.context.model, CompiledModel())
        if walked.stopped:
            return walked.state, walked.stopped
        return walked.state, walk(
            RELEASE_STEPS, self.context, ReleaseState(ReleaseArtifacts(walked.state, None))
        ).stopped

    def _context_beside(self, own: ModelContext, name: str, spec: ModelSpec) -> ModelContext:
        try:
            return model_context(spec, own.relative_to, lambda: own.stages)
        except PlansmithError as error:
            raise error.located(model=companion_label(own.name, name)) from error.__cause__

    def _find_runtime(self, own: ModelContext) -> None:
        """Find the runtime for the served check; in a dry run, record the reason if there is none."""
        spec = own.spec
        if not spec.check_served:
            return
        from plansmith.triton.server.runtime import find_serving_runtime

        beside = {companion.engine for companion in companion_specs(spec).values()}
        around = {"dali": uses_dali(spec), "parts": spec.pipeline is not None}
        try:
            self._runtime = find_serving_runtime(spec.tritonserver, own.target, spec.engine, beside=beside, **around)
        except PlansmithError as error:
            if not (own.stages.dry and own.plans):
                raise
            self._no_server = error

    def _surroundings(self) -> Fingerprint:
        """Return what determines the result apart from the outputs of the steps."""
        own = self.context.model
        with own.located("fetch"):
            return build_inputs(own.spec, own.reference, relative_to=own.relative_to, digester=self._stages.digester)

    def _require_buildable(self) -> None:
        """Refuse immediately what would only fail at the build, minutes later.

        Raises:
            PlansmithError: the plan is not in the cache, and this machine cannot build it.
        """
        own = self.context.model
        if own.plans is not None and self.preview().get("compile") == "would run":
            with own.located("compile"):
                own.plans.require_machine()

    def plan(self) -> dict[str, str]:
        """Plan a run step by step; only for a dry compilation."""
        self._looked_at, begins = self._look()
        context, spec, is_shared = self.context, self.context.model.spec, self._stages.is_shared
        cached_steps: dict[str, bool] = {}
        for record in self.steps:  # of models beside it there may be several
            step = record.name.partition(" ")[0]
            cached_steps[step] = record.cached and cached_steps.get(step, True)
        to_do = "would come from the shared cache, or run" if is_shared else "would run"
        plan = {step: "cached" if cached_steps.get(step) else to_do for step in STEPS}
        if is_shared:
            plan[begins] = "would come from the shared cache"
        if "publish" in cached_steps:
            plan["publish"] = "nothing: the newest version is this one"
        absent = {"join": spec.pipeline is None, "beside": not context.companions, "script": context.script is None}
        plan = {step: text for step, text in plan.items() if not absent.get(step)}
        if not spec.check_served:
            plan["check_served"] = "left out"
        if spec.load_into:
            plan["publish"] += f", and be loaded into {', '.join(spec.load_into)}"
        if context.deliveries.places:
            plan["publish"] += f", and go to {', '.join(context.deliveries.places)}"
        if self._no_server is not None:
            plan["check_served"] = f"will be refused: {self._no_server.message}"
        after = "lower" in cached_steps or begins == "lower"
        if "sample" not in cached_steps and (after or not may_need_samples(spec)):
            plan["sample"] = "left out"
        return plan

    def plan_here(self, say: Callable[[str], None]) -> dict[str, str]:
        """As `plan`, for a run on this machine: refuses or reports what it cannot do.

        A plan of TensorRT is built elsewhere, perhaps: that this machine cannot is said alone. So is what nobody knows
        before the model is loaded.

        Args:
            say: told a line of such.

        Raises:
            EnvironmentFault: there is no GPU for the export, or a Triton that has to load the version does not answer.
        """
        from plansmith.triton.server.installation import has_gpu

        plan, own = self.plan(), self.context.model
        spec = own.spec
        runs = {step for step, status in plan.items() if status.startswith("would run")}
        if "export" in runs and spec.device == "cuda" and not has_gpu():
            with own.located("export"):
                raise EnvironmentFault(
                    "device: cuda, and there is no NVIDIA GPU here",
                    remedy="use --device cpu, or run it where nvidia-smi lists a GPU",
                )
        with own.located("publish"):
            _require_reachable(spec.load_into)
        if "compile" in runs and own.plans is not None and not has_gpu():
            say("the compile would be refused here: there is no NVIDIA GPU to build a plan on")
        settings = [name for name in ("shapes", "inputs", "outputs") if getattr(spec, name)]
        settings += ["triton.max_batch_size"] if spec.triton.max_batch_size is not None else []
        if "export" in runs and settings:
            say(f"whether {' and '.join(settings)} fit the model is known once it is loaded")
        return plan

    def publications(self) -> tuple[Publication, ...]:
        """Return the planned publications to stores, after `plan`; none for a release that is not built yet.

        Raises:
            PlansmithError: a store cannot be asked, or refuses it.
        """
        with self.context.model.located("publish"):
            return self.context.deliveries.plan()

    def builds(self) -> BuildPreview | None:
        """Return the settings of the plan builds, after `plan`; None for engines other than TensorRT."""
        from plansmith.steps.tensorrt.preview import preview_builds

        own = self.context.model
        if own.plans is None:
            return None
        kinds, results = own.plans.known_kinds, self._looked_at.results
        return preview_builds(own.spec, own.reference, own.target, kinds, results, relative_to=own.relative_to)

    def preview(self) -> dict[str, str]:
        """As `plan`, before a run; a step that will be refused reports it."""
        with self._stages.looking():
            try:
                return self.plan()
            except PlansmithError as error:
                return {error.step: f"will be refused: {error.message}"}
