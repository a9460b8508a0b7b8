"""A compile: what `ModelSteps` makes of a model, and of those beside it, is packaged, served once, and published.

Each step is a plain method that takes and gives finished records; what they share is in `stages`. The heavy
ones are carried out by one worker process, started when the first of them is not in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from plansmith.compilers.python_backend.model_folder import NUMPY
from plansmith.config.spec import ModelSpec
from plansmith.errors import EnvironmentFault, PlansmithError, require_all
from plansmith.records.destination import Publication
from plansmith.records.fingerprint import Basis
from plansmith.records.pipeline import Script
from plansmith.records.release import Manifest, Package, PublishedVersion, StepRecord
from plansmith.records.validation import ServedReport
from plansmith.steps.artifacts import MadeModel, specs_beside
from plansmith.steps.cache.shared import SharedCache
from plansmith.steps.model_steps import ModelSteps, Perform, plainly
from plansmith.steps.pipeline import require_together, uses_dali
from plansmith.steps.provenance.fingerprint import surroundings
from plansmith.steps.provenance.history import HISTORY, History
from plansmith.steps.provenance.recording import Run, recorded
from plansmith.steps.release.check_served import ask_server
from plansmith.steps.release.deliver import Deliveries
from plansmith.steps.release.environment_choice import environments_of
from plansmith.steps.release.package import Scripted, largest_batch_of, lay_out
from plansmith.steps.release.publish import Made, publish
from plansmith.steps.runner import Finished, Listener, WouldRun, called_beside
from plansmith.steps.sample import may_need_samples
from plansmith.steps.script import run_script_on, script_of
from plansmith.steps.tensorrt.preview import BuildOutlook, outlook_of
from plansmith.system.digest import Digester
from plansmith.system.files import require_writable
from plansmith.triton.config.option_rules import require_served
from plansmith.triton.config.script import MAIN
from plansmith.triton.repository.repository import ModelRepository
from plansmith.triton.server.control.load_targets import LoadedInto
from plansmith.triton.server.installation import has_gpu
from plansmith.triton.server.runtime import ServingRuntime, find_serving_runtime

STEPS = (
    *("fetch", "export", "sample", "lower", "compile", "validate", "join"),
    *("beside", "script", "package", "check_served", "publish"),
)

P = ParamSpec("P")
R = TypeVar("R")


class Compilation(ModelSteps):
    """One model on its way from source to published version; arguments as for `GraphSteps`.

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
        shared: SharedCache | None = None,
    ) -> None:
        super().__init__(spec, relative_to=relative_to, listener=listener, dry=dry, digester=digester, shared=shared)
        self.repository = ModelRepository(
            Path(spec.repository or self._artifacts / "repository"), self._stages.digester
        )
        self._runtime: ServingRuntime | None = None
        self._no_server: PlansmithError | None = None
        require_all(
            lambda: require_served(spec, self.name, self.target.device, relative_to),
            lambda: self.repository.require_target(self.target.name),
            lambda: self._find_runtime(dry=dry),
        )
        self._beside = {name: self._steps_beside(name, one) for name, one in specs_beside(self.spec).items()}
        if spec.pipeline is not None and (self._beside or spec.pipeline.script):
            with self._locating("join"):
                around = {"": self, **self._beside}
                require_together({name: (one.spec, one.reference) for name, one in around.items()})
        with self._locating("script"):
            self._script = script_of(spec, relative_to)
        self._finished: dict[str, Finished[Any]] = {}
        self._history = History(self._artifacts / HISTORY)
        with self._locating("publish"):
            self._deliveries = Deliveries(
                spec, relative_to=relative_to, repository=self.repository, stages=self._stages
            )
        if not dry:
            for place in (self._artifacts, self.repository.root, self.repository.store):
                require_writable(place)
            LoadedInto(spec.load_into).require_reachable()
            with self._locating("publish"):
                self._deliveries.require_open()

    def _steps_beside(self, name: str, spec: ModelSpec) -> ModelSteps:
        try:
            return ModelSteps(spec, relative_to=self._relative_to, stages=self._stages)
        except PlansmithError as error:
            raise error.located(model=called_beside(self.name, name)) from error.__cause__

    def run(self, perform: Perform = plainly) -> tuple[PublishedVersion, Manifest]:
        """All steps, from source to published version; the manifest tells of this run.

        Args:
            perform: carries each step out; an orchestrator puts its own surroundings around them.

        Raises:
            PlansmithError: located at the step that failed; nothing was published.
        """
        if self._stages.dry:
            return self._do(perform)
        with recorded(Run(self._stages, self.spec, self.name, self.repository.root), self._history):
            return self._do(perform)

    def _find_runtime(self, *, dry: bool) -> None:
        """What answers the served check; why nothing does, for whoever only looks at what a build would be told."""
        spec = self.spec
        if not spec.check_served:
            return
        beside = {one.engine for one in specs_beside(spec).values()}
        around = {"dali": uses_dali(spec), "parts": spec.pipeline is not None}
        try:
            self._runtime = find_serving_runtime(spec.tritonserver, self.target, spec.engine, beside=beside, **around)
        except PlansmithError as error:
            if not (dry and self._plans):
                raise
            self._no_server = error

    def _do(self, perform: Perform) -> tuple[PublishedVersion, Manifest]:
        self._require_buildable()
        before = None if self._stages.dry else self._surroundings()
        model = self.make(perform)
        beside = {name: perform(self.beside, name) for name in self._beside}
        script = perform(self.script, model, beside) if self._script else None
        self._stages.end_worker()
        for steps, made in ((self, model), *((self._beside[name], made) for name, made in beside.items())):
            steps.require_complete(made)
        package = perform(self.package, model, beside, script)
        served = perform(self.check_served, package, model, beside, script) if self.spec.check_served else None
        return perform(self.publish, Made(model, beside, script, package, served, before))

    def _surroundings(self) -> Basis:
        """What decides the result besides what the steps bring here."""
        with self._locating("fetch"):
            return surroundings(
                self.spec, self.reference, relative_to=self._relative_to, digester=self._stages.digester
            )

    def plan(self) -> dict[str, str]:
        """What a run would do, step by step; only for a dry compilation."""
        begins, is_shared = "", False
        try:
            self._do(self._remembering)
        except WouldRun as first:
            begins, is_shared = first.step, first.is_shared
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
        if self.spec.pipeline is None:
            del plan["join"]
        if not self._beside:
            del plan["beside"]
        if self._script is None:
            del plan["script"]
        if not self.spec.check_served:
            plan["check_served"] = "left out"
        if self.spec.load_into:
            plan["publish"] += f", and be loaded into {', '.join(self.spec.load_into)}"
        if self._deliveries.places:
            plan["publish"] += f", and go to {', '.join(self._deliveries.places)}"
        if self._no_server is not None:
            plan["check_served"] = f"will be refused: {self._no_server.message}"
        after = "lower" in found or begins == "lower"
        if "sample" not in found and (after or not may_need_samples(self.spec)):
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
        plan, spec = self.plan(), self.spec
        runs = {step for step, words in plan.items() if words.startswith("would run")}
        if "export" in runs and spec.device == "cuda" and not has_gpu():
            with self._locating("export"):
                raise EnvironmentFault(
                    "device: cuda, and there is no NVIDIA GPU here",
                    remedy="use --device cpu, or run it where nvidia-smi lists a GPU",
                )
        with self._locating("publish"):
            LoadedInto(spec.load_into).require_reachable()
        if "compile" in runs and self._plans is not None and not has_gpu():
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
        with self._locating("publish"):
            return self._deliveries.plan()

    def builds(self) -> BuildOutlook | None:
        """What the build of a plan would be told, after `plan`; None for another engine than TensorRT."""
        if self._plans is None:
            return None
        kinds, relative_to = self._plans.known_kinds, self._relative_to
        return outlook_of(self.spec, self.reference, self.target, kinds, self._finished, relative_to=relative_to)

    def _remembering(self, step: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        made = step(*args, **kwargs)
        if isinstance(made, Finished):
            self._finished[step.__name__] = made
        return made

    def _require_buildable(self) -> None:
        """Refuse at once what would end at the build, minutes later.

        Raises:
            PlansmithError: the plan is not in the cache, and this machine cannot build it.
        """
        if self._plans is None or self._stages.dry:
            return
        known = self.outlook()
        if known.get("compile") == "would run":
            with self._locating("compile"):
                self._plans.require_machine()

    def outlook(self) -> dict[str, str]:
        """As `plan`, before a run that is not dry; a step that will be refused says so."""
        with Compilation(
            self.spec,
            relative_to=self._relative_to,
            dry=True,
            digester=self._stages.digester,
            shared=self._shared,
        ) as dry:
            try:
                return dry.plan()
            except PlansmithError as error:
                return {error.step: f"will be refused: {error.message}"}

    @property
    def steps(self) -> list[StepRecord]:
        """How the steps went so far."""
        return self._stages.records

    def beside(self, name: str) -> MadeModel:
        """Make a model that stands beside the model, from its source to what stands around it.

        Args:
            name: in the spec's `pipeline`.

        Raises:
            PlansmithError: located at the step that failed, and at the model that it is about.
        """
        with self._stages.timed(f"beside {name}") as clock, self._stages.aside(name):
            try:
                made = self._beside[name].make(plainly)
            except WouldRun as first:
                raise WouldRun("beside", is_shared=first.is_shared) from None
            clock.cached = made.cached
        return made

    def script(self, model: MadeModel, beside: Mapping[str, MadeModel]) -> Finished[Script]:
        """Hold the spec's script against its models.

        Raises:
            UsageError: it cannot be used, or fails.
            GateError: what is served makes it answer something else.
        """
        assert self._script is not None
        models = {MAIN: (self.spec, model), **{name: (self._beside[name].spec, one) for name, one in beside.items()}}
        largest = min(largest_batch_of(one, spec.triton) for spec, one in models.values())
        return run_script_on(self._stages, self._script, self.target, models, largest=largest)

    def package(
        self, model: MadeModel, beside: Mapping[str, MadeModel], script: Finished[Script] | None
    ) -> Finished[Package]:
        """Lay out the release: config.pbtxt and the files that Triton loads.

        Raises:
            EngineError: an input or output that Triton cannot carry.
            UsageError: models beside one another that take other raw inputs.
            EnvironmentFault: an environment that the release shall bring with it cannot be packed.
        """
        options = self.spec.triton.found_from(self._relative_to)
        environments = environments_of(self.spec, model, beside, self.target)
        asked = Scripted(self._script, script, NUMPY) if self._script and script else None
        return lay_out(
            *(self._stages, self.name, self.target, options, model),
            beside=beside,
            script=asked,
            environments=environments,
        )

    def check_served(
        self,
        package: Finished[Package],
        model: MadeModel,
        beside: Mapping[str, MadeModel],
        script: Finished[Script] | None,
    ) -> Finished[ServedReport]:
        """Have a real Triton load the release and answer.

        Raises:
            ServedCheckError: it does not load, answers wrongly, or Triton understood another configuration.
        """
        if self._runtime is None:
            raise WouldRun("check_served")
        return ask_server(self._stages, self._runtime, package, model, beside, script)

    def publish(self, made: Made) -> tuple[PublishedVersion, Manifest]:
        """Number the release, exchange the view that Triton reads, and bring it to the spec's destinations.

        Raises:
            RepositoryError: another target's repository, a changed interface, a full or unwritable disk; a destination
                that refuses it.
            EnvironmentFault: a server or a destination cannot be reached.
            ServedCheckError: a server that has to load it does not; it was withdrawn.
        """
        places: dict[str, Any] = {"deliveries": self._deliveries, "relative_to": self._relative_to}
        return publish(self._stages, self.repository, self.spec, self.reference, made, **places)
