"""Release steps: from validated models to a published version."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from plansmith.records.release import Manifest, PublishedVersion
from plansmith.steps.artifacts import CompiledModel
from plansmith.steps.context import ModelContext
from plansmith.steps.model_steps import MODEL_STEPS, require_complete
from plansmith.steps.release.environment import environments_of
from plansmith.steps.release.package import Scripted, build_package, largest_batch_of
from plansmith.steps.release.publish import Deliveries, ReleaseArtifacts, publish
from plansmith.steps.runner import StageRunner
from plansmith.steps.script import run_script_on
from plansmith.steps.walk import Step, walk
from plansmith.triton.repository.repository import ModelRepository

if TYPE_CHECKING:
    from plansmith.triton.server.runtime import ServingRuntime


@dataclass(frozen=True)
class ReleaseContext:
    """Release context: what the steps of one release share.

    Attributes:
        model: the release's own model.
        repository: where the release goes.
        deliveries: take it besides.
        runtime: answers the served check; None without one.
        companions: by name, the models beside the release's own.
        script: answers requests by asking the models; None where all of them are asked.
    """

    model: ModelContext
    repository: ModelRepository
    deliveries: Deliveries
    runtime: ServingRuntime | None
    companions: dict[str, ModelContext] = field(default_factory=dict)
    script: Path | None = None

    @property
    def stages(self) -> StageRunner:
        """The runner of the steps."""
        return self.model.stages


@dataclass(frozen=True)
class ReleaseState:
    """Release state: a release with the results of its steps so far.

    Attributes:
        artifacts: what the steps made.
        published: the version and its manifest; None before the last step.
    """

    artifacts: ReleaseArtifacts
    published: tuple[PublishedVersion, Manifest] | None = None

    def with_artifacts(self, artifacts: ReleaseArtifacts) -> ReleaseState:
        """Return the same with what a further step made."""
        return replace(self, artifacts=artifacts)


def _has_beside(context: ReleaseContext, _: ReleaseState) -> bool:
    return bool(context.companions)


def make_beside(context: ReleaseContext, state: ReleaseState) -> ReleaseState | None:
    """Build the companion models, each from its source to its pipeline.

    Raises:
        PlansmithError: located at the step that failed, and at the model that it is about.
    """
    stages, beside = context.stages, dict[str, CompiledModel]()
    for name, model in context.companions.items():
        with stages.timed(f"beside {name}") as clock, stages.nested(name):
            walked = walk(MODEL_STEPS, model, CompiledModel())
            clock.cached, clock.is_missing = walked.state.cached, bool(walked.stopped)
        if walked.stopped:
            return None
        beside[name] = walked.state
    return state.with_artifacts(replace(state.artifacts, companions=beside))


def _has_script(context: ReleaseContext, _: ReleaseState) -> bool:
    return context.script is not None


def try_script(context: ReleaseContext, state: ReleaseState) -> ReleaseState | None:
    """Check the spec's script against its models.

    Raises:
        UsageError: it cannot be used, or fails.
        GateError: what is served makes it answer something else.
    """
    from plansmith.triton.config.script import MAIN

    assert context.script is not None
    own, artifacts = context.model, state.artifacts
    models = {MAIN: (own.spec, artifacts.model)}
    models |= {name: (context.companions[name].spec, model) for name, model in artifacts.companions.items()}
    largest = min(largest_batch_of(compiled, spec.triton) for spec, compiled in models.values())
    script = run_script_on(context.stages, context.script, own.target, models, largest=largest)
    return None if script is None else state.with_artifacts(replace(state.artifacts, script=script))


def _require_complete(context: ReleaseContext, state: ReleaseState) -> None:
    require_complete(context.model, state.artifacts.model)
    for name, artifacts in state.artifacts.companions.items():
        require_complete(context.companions[name], artifacts)


def package(context: ReleaseContext, state: ReleaseState) -> ReleaseState | None:
    """Package the release: write config.pbtxt and the files that Triton loads.

    Raises:
        EngineError: an input or output that Triton cannot carry.
        UsageError: models beside one another that take other raw inputs.
        EnvironmentFault: an environment that the release shall bring with it cannot be packed.
    """
    own, artifacts = context.model, state.artifacts
    context.stages.end_worker()  # nothing that follows needs it
    scripted = None
    if context.script and artifacts.script:
        from plansmith.compilers.python_backend.model_folder import NUMPY

        scripted = Scripted(context.script, artifacts.script, NUMPY)
    laid = build_package(
        context.stages,
        own.name,
        own.target,
        own.spec.triton.with_absolute_paths(own.relative_to),
        artifacts.model,
        beside=artifacts.companions,
        script=scripted,
        environments=environments_of(own.spec, artifacts.model, artifacts.companions, own.target),
    )
    return None if laid is None else state.with_artifacts(replace(state.artifacts, package=laid))


def _is_checked(context: ReleaseContext, _: ReleaseState) -> bool:
    return context.model.spec.check_served


def check_served(context: ReleaseContext, state: ReleaseState) -> ReleaseState | None:
    """Run the served check: a real Triton must load the release and answer.

    Raises:
        ServedCheckError: it does not load, answers wrongly, or Triton understood another configuration.
    """
    artifacts = state.artifacts
    if context.runtime is None:
        return None
    from plansmith.steps.release.check_served import run_served_check

    assert artifacts.package is not None
    served = run_served_check(
        context.stages,
        context.runtime,
        artifacts.package,
        artifacts.model,
        artifacts.companions,
        artifacts.script,
    )
    return None if served is None else state.with_artifacts(replace(state.artifacts, served=served))


def publish_release(context: ReleaseContext, state: ReleaseState) -> ReleaseState | None:
    """Publish the release.

    Assign its number, switch the view that Triton reads, and copy it to the spec's destinations.

    Raises:
        RepositoryError: another target's repository, a changed interface, a full or unwritable disk; a destination
            that refuses it.
        EnvironmentFault: a server or a destination cannot be reached.
        ServedCheckError: a server that has to load it does not; it was withdrawn.
    """
    own = context.model
    published = publish(
        context.stages,
        context.repository,
        own.spec,
        own.reference,
        state.artifacts,
        deliveries=context.deliveries,
        relative_to=own.relative_to,
    )
    return None if published is None else replace(state, published=published)


RELEASE_STEPS = (
    Step("beside", make_beside, is_needed=_has_beside),
    Step("script", try_script, is_needed=_has_script),
    Step("package", package, check=_require_complete),
    Step("check_served", check_served, is_needed=_is_checked),
    Step("publish", publish_release),
)
"""From a model that was judged to a published version."""
