"""Builds the stale models of a fleet on work pools: a run for each, started once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.config.spec import ModelSpec
from plansmith.errors import PlansmithError, UsageError
from plansmith.fleet.build import outcome_of, outcome_without_work, spec_of
from plansmith.fleet.records import ModelOutcome, PlannedModel, failure_of
from plansmith.fleet.text import model_for
from plansmith.flows.fleet.awaiting import Awaited, Wait, require_api
from plansmith.flows.fleet.pool_runs import Dispatch, PoolRuns, WantedRun
from plansmith.flows.prefect_api.places import rooted
from plansmith.flows.runs.outcomes import tags_of
from plansmith.steps.provenance.fingerprint import fingerprint_of
from plansmith.system.digest import Digester, digest_of

if TYPE_CHECKING:
    from prefect.client.schemas.responses import DeploymentResponse

Tell = Callable[[str], None]


def build_on_pools(
    planned: Sequence[PlannedModel],
    overrides: Mapping[str, Any],
    dispatch: Dispatch,
    runs: PoolRuns,
    tell: Tell,
) -> Iterator[ModelOutcome]:
    """Start a run for each model that is stale, and give what comes of each model, as they end.

    Args:
        planned: of the fleet.
        overrides: as the plan was made with.
        dispatch: where, and how long.
        runs: of the fleet.
        tell: told in words what is unusual.

    Raises:
        EnvironmentFault: the Prefect API was away for too long; the runs go on, and the next fleet finds them.
    """
    awaited: list[Awaited] = []
    for one in planned:
        begun = _begin(one, overrides, dispatch, runs) if one.state == "stale" else outcome_without_work(one)
        if isinstance(begun, ModelOutcome):
            yield begun
        else:
            awaited.append(begun)
    yield from Wait(runs, dispatch, tell).until_ended(awaited)


def _begin(
    planned: PlannedModel, overrides: Mapping[str, Any], dispatch: Dispatch, runs: PoolRuns
) -> Awaited | ModelOutcome:
    """Start the run of a model, or find the one that does the same; what keeps it from that is the model's failure."""
    since = time.monotonic()
    try:
        spec, folder = spec_of(planned, overrides)
        pool = _pool_of(planned.target, dispatch.pools)
        parameters = parameters_of(spec, folder, dispatch.folder)
        wanted = _wanted(planned, parameters, _basis(spec, folder), pool, runs.deployment(pool))
        return Awaited(planned, wanted, runs.find_or_start(wanted), since)
    except Exception as error:  # noqa: BLE001 - an odd answer about one model is no reason to give the others up
        require_api(error)
        return outcome_of(planned, "failed", failure=failure_of(error), seconds=time.monotonic() - since)


def _pool_of(target: str, pools: Mapping[str, str]) -> str:
    pool = pools.get(target, pools.get(""))
    if pool is None:
        raise UsageError(
            f"no work pool builds for the target {target}",
            remedy="name one in the parameter `pools`, by this target or by '' for all others",
        )
    return pool


def parameters_of(spec: ModelSpec, folder: Path, start: str) -> dict[str, Any]:
    """The parameters of compile-model for a spec of a fleet, whose places a worker may have elsewhere.

    Args:
        spec: of the model.
        folder: of its file.
        start: the fleet's folder, as it was asked for; this process works in it.
    """
    here = Path.cwd()
    placed = Path(start) / folder.relative_to(here) if folder.is_relative_to(here) else folder
    said = spec.model_dump(mode="json", exclude_defaults=True)
    return {"spec": said, "folder": str(placed), "directory": start}


def _wanted(
    planned: PlannedModel, parameters: dict[str, Any], basis: Any, pool: str, deployment: DeploymentResponse
) -> WantedRun:
    reasons = [reason.model_dump() for reason in planned.reasons]
    cause = [str(deployment.id), parameters, reasons, basis]
    return WantedRun(
        deployment=deployment,
        pool=pool,
        key=f"plansmith:{digest_of(cause)}",
        name=model_for(planned.model, planned.target),
        tags=tags_of(planned.model, planned.target),
        parameters=parameters,
    )


def _basis(given: ModelSpec, folder: Path) -> dict[str, Any] | None:
    """What the model would be made from now: files may change twice while the reason to build keeps its words."""
    spec = rooted(given, Path.cwd())
    cache = Path(spec.artifacts) / "cache"
    try:
        digester = Digester(cache / "digests.sqlite", read_only=not cache.is_dir())
        return fingerprint_of(spec, relative_to=folder, digester=digester).model_dump(mode="json")
    except (PlansmithError, OSError):
        return None  # the compile says what is wrong with it
