"""Where models are compiled for others: the deployments of compile-model by work pool, and who takes up their runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plansmith.errors import UsageError
from plansmith.flows.deploy.deployments import ONE_MODEL

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

HOW_TO_DEPLOY = "plansmith flows deploy"

_MOST_NAMES = 12


@dataclass(frozen=True)
class Obstacle:
    """What keeps the runs of a deployment from being taken up now, and what to type."""

    words: str
    remedy: str


def find_deployment(client: SyncPrefectClient, pool: str | None) -> DeploymentResponse:
    """The deployment of compile-model for a work pool; without one, the only one that there is.

    Args:
        client: of the API.
        pool: the work pool, by which the deployment is called; `served` for that of `plansmith flows serve`.

    Raises:
        UsageError: there is none, with the names of those that are there.
        httpx.HTTPError: the API does not answer.
    """
    from prefect.client.schemas.filters import FlowFilter, FlowFilterName

    there = client.read_deployments(flow_filter=FlowFilter(name=FlowFilterName(any_=[ONE_MODEL])))
    found = [one for one in there if pool in {None, one.name}]
    if len(found) == 1:
        return found[0]
    names = sorted(one.name for one in there)
    if not there:
        raise UsageError(
            f"the Prefect server has no deployment of {ONE_MODEL}",
            remedy=f"{HOW_TO_DEPLOY}, or on one machine: plansmith flows serve",
        )
    if pool is None:
        raise UsageError(f"{ONE_MODEL} is deployed to {len(names)} work pools", remedy=f"--pool {_listed(names)}")
    if pool in {one.name for one in client.read_work_pools()}:
        raise UsageError(
            f"{ONE_MODEL} is not deployed to the work pool {pool}; it is to {_listed(names)}", remedy=HOW_TO_DEPLOY
        )
    raise UsageError(
        f"there is no work pool {pool}; {ONE_MODEL} is deployed to {_listed(names)}",
        remedy=f"name one of those, or {HOW_TO_DEPLOY}",
    )


def find_hindrance(client: SyncPrefectClient, deployment: DeploymentResponse) -> Obstacle | None:
    """What keeps a deployment's runs from being taken up now; None where nothing does."""
    from prefect.client.schemas.filters import WorkerFilter, WorkerFilterStatus
    from prefect.client.schemas.objects import DeploymentStatus, WorkerStatus

    pool = deployment.work_pool_name
    if pool is None:
        if deployment.status == DeploymentStatus.READY:
            return None
        words = f"nobody serves the deployment {ONE_MODEL}/{deployment.name}"
        return Obstacle(words, "plansmith flows serve, on the machine that builds")
    if client.read_work_pool(pool).is_paused:
        return Obstacle(f"the work pool {pool} is paused", f"prefect work-pool resume {pool}")
    online = WorkerFilter(status=WorkerFilterStatus(any_=[WorkerStatus.ONLINE]))
    if not client.read_workers_for_work_pool(pool, worker_filter=online, limit=1):
        return Obstacle(
            f"no worker polls the work pool {pool}", f"prefect worker start --pool {pool}, where it can build"
        )
    return None


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
