"""Local fleet build: builds stale models in this process, one after another, each as its own flow run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from prefect import tags
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run

from plansmith.config.spec import ModelSpec
from plansmith.errors import EnvironmentFault, PlansmithError, first_line
from plansmith.fleet.build import outcome_of, outcome_without_work, spec_of
from plansmith.fleet.records import ModelOutcome, PlannedModel, failure_of
from plansmith.flows.compile_model import compile_model
from plansmith.flows.deploy.deployments import service_tag
from plansmith.flows.prefect_api.api import rooted
from plansmith.flows.prefect_api.cancelling import cancellable
from plansmith.flows.prefect_api.patience import UNTAKEN, refusal_of, retry_while_unavailable
from plansmith.flows.runs import following
from plansmith.flows.runs.outcomes import tags_of
from plansmith.steps.runner import shared_imports

Tell = Callable[[str], None]


def build_here(planned: Sequence[PlannedModel], overrides: Mapping[str, Any], tell: Tell) -> Iterator[ModelOutcome]:
    """Build the stale models, and yield each model's outcome; must be called in the main thread.

    Args:
        planned: of the fleet.
        overrides: as the plan was made with.
        tell: told in words what is unusual.

    Raises:
        KeyboardInterrupt: this process is to end; a run that is cancelled in Prefect ends alone.
        EnvironmentFault: the Prefect API was away for too long.
    """
    with shared_imports():
        for model in planned:
            yield _build(model, overrides, tell) if model.state == "stale" else outcome_without_work(model)


def _build(planned: PlannedModel, overrides: Mapping[str, Any], tell: Tell) -> ModelOutcome:
    started = time.monotonic()
    try:
        spec, folder = spec_of(planned, overrides)
    except (PlansmithError, OSError) as error:
        return outcome_of(planned, "failed", failure=failure_of(error), seconds=time.monotonic() - started)
    retry_while_unavailable(_ask_for_health, tell)
    watching = following.RunObserver()
    token = following.current.set(watching)
    try:
        failure = _run(rooted(spec, Path.cwd()), folder, [*tags_of(planned.model, planned.target), *_service()])
    finally:
        following.current.reset(token)
    seconds = time.monotonic() - started
    if watching.ended is None:  # it did not even begin
        return outcome_of(planned, "failed", failure=failure_of(failure), seconds=seconds)
    result = watching.ended
    return outcome_of(
        planned, result.ended, version=result.version, failure=result.failure, seconds=seconds, run=result.run
    )


def _run(spec: ModelSpec, folder: Path, found_by: list[str]) -> BaseException:
    """Compile a model as a subflow run; return the error of the run itself, if any.

    Raises:
        KeyboardInterrupt: this process was interrupted, not that run cancelled.
    """
    cancelled: list[bool] = []
    try:
        with cancellable(lambda _: None, lambda: cancelled.append(True)) as begin, tags(*found_by):
            state: Any = compile_model.with_options(on_running=[begin])(spec, str(folder), return_state=True)
    except httpx.HTTPStatusError as error:
        return refusal_of(error, "a run of compile-model")
    except UNTAKEN as error:
        return EnvironmentFault(
            f"the Prefect API was lost: {first_line(error)}", remedy="see the log of the Prefect server", transient=True
        )
    except KeyboardInterrupt:
        if not cancelled:
            raise
        return KeyboardInterrupt()
    if state.is_cancelled() and not cancelled:
        raise KeyboardInterrupt
    return EnvironmentFault(f"the run of compile-model did not begin: {state.message}", remedy="see its log")


def _service() -> list[str]:
    """The service tags, by which automations find its runs; a deployment's runs inherit them."""
    return [tag for tag in flow_run.get_tags() or [] if tag.startswith(service_tag(""))]


def _ask_for_health() -> None:
    with get_client(sync_client=True) as client:
        client.hello().raise_for_status()
