"""A compile: the steps of its models and of its release, carried out one after the other, or only looked at.

The lists of steps are `MODEL_STEPS` and `RELEASE_STEPS`; a run, a dry run and a look ahead walk the same ones. What is
heavy is done by one worker process, started when the first such step is not in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Self

from plansmith.config.spec import ModelSpec
from plansmith.errors import EnvironmentFault, PlansmithError, require_all
from plansmith.records.destination import Publication
from plansmith.records.fingerprint import Fingerprint
from plansmith.records.release import Manifest, PublishedVersion, StepRecord
from plansmith.steps.artifacts import CompiledModel, companion_specs
from plansmith.steps.context import ModelContext, start_stages
from plansmith.steps.model_steps import MODEL_STEPS, model_context
from plansmith.steps.pipeline import require_compatible, uses_dali
from plansmith.steps.provenance.fingerprint import build_inputs
from plansmith.steps.provenance.history import HISTORY, History
from plansmith.steps.provenance.recording import Run, recorded
from plansmith.steps.release.deliver import Deliveries
from plansmith.steps.release.publish import ReleaseArtifacts
from plansmith.steps.release.release_steps import RELEASE_STEPS, ReleaseContext, ReleaseState
from plansmith.steps.runner import Listener, companion_label
from plansmith.steps.sample import may_need_samples
from plansmith.steps.script import script_of
from plansmith.steps.tensorrt.preview import BuildPreview, preview_builds
from plansmith.steps.walk import StepExecutor, run_inline, walk
from plansmith.system.digest import Digester
from plansmith.system.files import require_writable
from plansmith.triton.config.option_rules import require_served
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.server.control.load_targets import ServerGroup
from plansmith.triton.server.installation import has_gpu
from plansmith.triton.server.runtime import ServingRuntime, find_serving_runtime

STEPS = tuple(step.name for steps in (MODEL_STEPS, RELEASE_STEPS) for step in steps)


class Compilation:
    """One model on its way from source to published version.

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
            lambda: self._find_runtime(own),
        )
        beside = {name: self._context_beside(own, name, one) for name, one in companion_specs(own.spec).items()}
        if spec.pipeline is not None and (beside or spec.pipeline.script):
            with own.located("join"):
                require_compatible({name: (one.spec, one.reference) for name, one in {"": own, **beside}.items()})
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
            ServerGroup(spec.load_into).require_reachable()
            with own.located("publish"):
                deliveries.require_open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stages.close()

    @property
    def name(self) -> str:
        """Of the model."""
        return self.context.model.name

    @property
    def steps(self) -> list[StepRecord]:
        """How the steps went so far."""
        return self._stages.records

    def run(self, execute: StepExecutor = run_inline) -> tuple[PublishedVersion, Manifest]:
        """All steps, from source to published version; the manifest tells of this run.

        Args:
            execute: carries each step out; an orchestrator puts its own surroundings around them.

        Raises:
            PlansmithError: located at the step that failed; nothing was published.
        """
        model = self.context.model
        with recorded(Run(self._stages, model.spec, self.name, self.context.repository.root), self._history):
            self._require_buildable()
            before = self._surroundings()
            made = walk(MODEL_STEPS, model, CompiledModel(), execute).state
            released = walk(RELEASE_STEPS, self.context, ReleaseState(ReleaseArtifacts(made, before)), execute).state
        assert released.published is not None
        return released.published

    def _look(self) -> tuple[CompiledModel, str]:
        """What the cache has of the model, and the step at which a run would have something to do, if any."""
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
        """What answers the served check; why nothing does, for whoever only looks at what a build would be told."""
        spec = own.spec
        if not spec.check_served:
            return
        beside = {one.engine for one in companion_specs(spec).values()}
        around = {"dali": uses_dali(spec), "parts": spec.pipeline is not None}
        try:
            self._runtime = find_serving_runtime(spec.tritonserver, own.target, spec.engine, beside=beside, **around)
        except PlansmithError as error:
            if not (own.stages.dry and own.plans):
                raise
            self._no_server = error

    def _surroundings(self) -> Fingerprint:
        """What decides the result besides what the steps bring here."""
        own = self.context.model
        with own.located("fetch"):
            return build_inputs(own.spec, own.reference, relative_to=own.relative_to, digester=self._stages.digester)

    def _require_buildable(self) -> None:
        """Refuse at once what would end at the build, minutes later.

        Raises:
            PlansmithError: the plan is not in the cache, and this machine cannot build it.
        """
        own = self.context.model
        if own.plans is not None and self.preview().get("compile") == "would run":
            with own.located("compile"):
                own.plans.require_machine()

    def plan(self) -> dict[str, str]:
        """What a run would do, step by step; only for a dry compilation."""
        self._looked_at, begins = self._look()
        context, spec, is_shared = self.context, self.context.model.spec, self._stages.is_shared
        found: dict[str, bool] = {}
        for record in self.steps:  # of models beside it there may be several
            step = record.name.partition(" ")[0]
            found[step] = record.cached and found.get(step, True)
        to_do = "would come from the shared cache, or run" if is_shared else "would run"
        plan = {step: "cached" if found.get(step) else to_do for step in STEPS}
        if is_shared:
            plan[begins] = "would come from the shared cache"
        if "publish" in found:
            plan["publish"] = "nothing: the newest version is this one"
        absent = {"join": spec.pipeline is None, "beside": not context.beside, "script": context.script is None}
        plan = {step: text for step, text in plan.items() if not absent.get(step)}
        if not spec.check_served:
            plan["check_served"] = "left out"
        if spec.load_into:
            plan["publish"] += f", and be loaded into {', '.join(spec.load_into)}"
        if context.deliveries.places:
            plan["publish"] += f", and go to {', '.join(context.deliveries.places)}"
        if self._no_server is not None:
            plan["check_served"] = f"will be refused: {self._no_server.message}"
        after = "lower" in found or begins == "lower"
        if "sample" not in found and (after or not may_need_samples(spec)):
            plan["sample"] = "left out"
        return plan

    def plan_here(self, say: Callable[[str], None]) -> dict[str, str]:
        """As `plan`, for whoever would run it on this machine: what it could not do is refused, or said.

        A plan of TensorRT is built elsewhere, perhaps: that this machine cannot is said alone. So is what nobody knows
        before the model is loaded.

        Args:
            say: told a line of such.

        Raises:
            EnvironmentFault: there is no GPU for the export, or a Triton that has to load the version does not answer.
        """
        plan, own = self.plan(), self.context.model
        spec = own.spec
        runs = {step for step, words in plan.items() if words.startswith("would run")}
        if "export" in runs and spec.device == "cuda" and not has_gpu():
            with own.located("export"):
                raise EnvironmentFault(
                    "device: cuda, and there is no NVIDIA GPU here",
                    remedy="use --device cpu, or run it where nvidia-smi lists a GPU",
                )
        with own.located("publish"):
            ServerGroup(spec.load_into).require_reachable()
        if "compile" in runs and own.plans is not None and not has_gpu():
            say("the compile would be refused here: there is no NVIDIA GPU to build a plan on")
        given = [name for name in ("shapes", "inputs", "outputs") if getattr(spec, name)]
        given += ["triton.max_batch_size"] if spec.triton.max_batch_size is not None else []
        if "export" in runs and given:
            say(f"whether {' and '.join(given)} fit the model is known once it is loaded")
        return plan

    def publications(self) -> tuple[Publication, ...]:
        """What would come of the publications to stores, after `plan`; none for a release that is not made yet.

        Raises:
            PlansmithError: a store cannot be asked, or refuses it.
        """
        with self.context.model.located("publish"):
            return self.context.deliveries.plan()

    def builds(self) -> BuildPreview | None:
        """What the build of a plan would be told, after `plan`; None for another engine than TensorRT."""
        own = self.context.model
        if own.plans is None:
            return None
        kinds, results = own.plans.known_kinds, self._looked_at.results
        return preview_builds(own.spec, own.reference, own.target, kinds, results, relative_to=own.relative_to)

    def preview(self) -> dict[str, str]:
        """As `plan`, before a run; a step that will be refused says so."""
        with self._stages.looking():
            try:
                return self.plan()
            except PlansmithError as error:
                return {error.step: f"will be refused: {error.message}"}
