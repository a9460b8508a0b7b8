"""Runs of compile-model on work pools: startable pools, idempotent starts, and their states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterParentFlowRunId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import StateType
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound

from plansmith.errors import EnvironmentFault, PlansmithError
from plansmith.flows.deploy.deployments import FLEETS, HOW_TO_DEPLOY, ONE_MODEL, find_deployment, find_hindrance
from plansmith.flows.prefect_api.cancelling import cancel_run
from plansmith.flows.prefect_api.patience import refusal_of, retry_while_unavailable
from plansmith.flows.runs.submitting import PAGE, newest_of, number_of, numbered, read_compiles, read_keyed

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun
    from prefect.client.schemas.responses import DeploymentResponse

R = TypeVar("R")


@dataclass(frozen=True)
class Dispatch:
    """Where models are built, and how long a fleet waits for that.

    Args:
        pools: by target the work pool that builds its models, "" for all other targets; none: in the fleet's process.
        take_up_seconds: how long a model may wait for a work pool that builds nothing.
        longest_seconds: how long a model may take once its run has begun.
        folder: what relative places start from; a relative one is in the working directory of whoever builds.
    """

    pools: Mapping[str, str] = field(default_factory=dict)
    take_up_seconds: float = 1800
    longest_seconds: float = 86400
    folder: str = "."


@dataclass(frozen=True)
class WantedRun:
    """A compile run to be started once.

    Args:
        deployment: carries it out.
        pool: what that is called in the parameters of the fleet.
        key: says what is built and why; two that are asked for at once with the same key are one.
        name: of its run.
        tags: of its run.
        parameters: of compile-model, as JSON values.
    """

    deployment: DeploymentResponse
    pool: str
    key: str
    name: str
    tags: Sequence[str]
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class Occupants:
    """Activity on a deployment's work pool.

    Args:
        ending: whether something is that ends by itself, whoever started it.
        fleets: names of the fleets' runs, which wait for other runs; none where this fleet's is elsewhere.
    """

    ending: bool
    fleets: tuple[str, ...] = ()


class PoolRuns:
    """The runs that a fleet waits for; every request is retried while the API is unavailable.

    Args:
        fleet: the fleet's own run.
        planned_after: when the fleet began to plan, by the clock of the server.
        tell: told in words that the API is away, and that it is back.
    """

    def __init__(self, fleet: UUID, planned_after: datetime, tell: Callable[[str], None]) -> None:
        self._fleet = fleet
        self._planned_after = planned_after
        self._tell = tell
        self._deployments: dict[str, DeploymentResponse | PlansmithError] = {}

    def deployment(self, pool: str) -> DeploymentResponse:
        """Return the deployment of compile-model for a work pool, or one served by `flows serve`.

        Raises:
            PlansmithError: there is none, or nobody would carry its runs out.
        """
        if pool not in self._deployments:
            try:
                self._deployments[pool] = self._ask(partial(self._find, pool=pool))
            except PlansmithError as error:
                if error.transient:
                    raise
                self._deployments[pool] = error
        result = self._deployments[pool]
        if isinstance(result, PlansmithError):
            raise result
        return result

    def _find(self, client: SyncPrefectClient, pool: str) -> DeploymentResponse:
        deployment = find_deployment(client, pool)
        hindrance = find_hindrance(client, deployment)
        if hindrance is not None:
            raise EnvironmentFault(hindrance.message, remedy=hindrance.remedy)
        if deployment.work_pool_name is not None:
            most = client.read_work_pool(deployment.work_pool_name).concurrency_limit
            fleets = self._occupants(client, deployment).fleets
            if most is not None and 0 < most <= len(fleets):
                raise EnvironmentFault(
                    f"the work pool {pool} carries out {most} runs at a time, and fleets wait in all of them:"
                    f" {', '.join(fleets)}",
                    remedy=f"prefect work-pool set-concurrency-limit {pool} {most + 1}, or a pool of their own for"
                    " fleets",
                )
        return deployment

    def find_or_start(self, run_request: WantedRun) -> FlowRun:
        """Return the run of a compile: an active one, one that ended since the fleet was planned, or a new one.

        A key holds no time: it is that of the cause, and a number. The server takes each once, so that of two fleets
        that ask at the same moment one starts the run and both wait for it. A run that ended before the plan was made
        is no answer to it, whether it went well or not: the plan says that the model is to be built, and the next
        number is free. One that ended after it is, for the plan may well be that of before the run. One that somebody
        cancels is no answer either: whoever did so did not know of this fleet.

        Raises:
            PlansmithError: the API refuses it.
        """
        number, newest = newest_of(self._with_keys, run_request.key)
        if newest is None:
            return self._start(run_request, number)
        return self._start(run_request, number + 1) if self._is_past(newest) else newest

    def start_again(self, run_request: WantedRun, before: FlowRun) -> FlowRun:
        """Return the run after a crashed or cancelled one; possibly one started by another fleet waiting for the same.

        Raises:
            PlansmithError: the API refuses it.
        """
        return self._start(run_request, number_of(before) + 1)

    def read(self, runs: Sequence[UUID]) -> dict[UUID, FlowRun]:
        """Return the current state of runs, without deleted ones."""
        result: dict[UUID, FlowRun] = {}
        for start in range(0, len(runs), PAGE):
            some = FlowRunFilter(id=FlowRunFilterId(any_=list(runs[start : start + PAGE])))
            result |= {run.id: run for run in self._ask(partial(read_compiles, which=some))}
        return result

    def is_ours(self, run: FlowRun) -> bool:
        """Whether this fleet started a run, and not another one that also waits for it."""
        mine = FlowRunFilter(
            id=FlowRunFilterId(any_=[run.id]),
            parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[self._fleet]),
        )
        return bool(self._ask(lambda client: client.read_flow_runs(flow_run_filter=mine)))

    def occupants(self, deployment: DeploymentResponse) -> Occupants:
        """Return the activity where the runs of a deployment are executed."""
        return self._ask(partial(self._occupants, deployment=deployment))

    def _occupants(self, client: SyncPrefectClient, deployment: DeploymentResponse) -> Occupants:
        running = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING])))
        if deployment.work_pool_name is None:
            its_own = DeploymentFilter(id=DeploymentFilterId(any_=[deployment.id]))
            return Occupants(bool(client.read_flow_runs(flow_run_filter=running, deployment_filter=its_own)))
        pool_filter = WorkPoolFilter(name=WorkPoolFilterName(any_=[deployment.work_pool_name]))
        waiting = FlowFilter(name=FlowFilterName(any_=list(FLEETS)))
        fleets = client.read_flow_runs(flow_filter=waiting, flow_run_filter=running, work_pool_filter=pool_filter)
        everything = client.read_flow_runs(flow_run_filter=running, work_pool_filter=pool_filter)
        is_there = any(run.id == self._fleet for run in fleets)
        ending = {run.id for run in everything} - {run.id for run in fleets}
        return Occupants(bool(ending), tuple(sorted(run.name for run in fleets)) if is_there else ())

    def cancel(self, run: FlowRun, why: str) -> None:
        """Cancel a run that is no longer waited for."""
        self._ask(lambda client: cancel_run(client, run, why))

    def _with_keys(self, keys: list[str]) -> list[FlowRun]:
        return self._ask(partial(read_keyed, keys=keys))

    def _is_past(self, run: FlowRun) -> bool:
        if run.state is not None and (run.state.is_cancelling() or run.state.is_cancelled()):
            return True
        over = run.state is not None and run.state.is_final()
        return over and run.updated is not None and run.updated < self._planned_after

    def _start(self, run_request: WantedRun, number: int) -> FlowRun:
        def start() -> FlowRun:
            started: Any = run_deployment(
                run_request.deployment.id,
                parameters=dict(run_request.parameters),
                timeout=0,
                as_subflow=True,
                idempotency_key=numbered(run_request.key, number),
                flow_run_name=run_request.name,
                tags=run_request.tags,
            )
            run: FlowRun = started
            return run

        try:
            return retry_while_unavailable(start, self._tell)
        except ObjectNotFound as error:
            raise EnvironmentFault(
                f"the deployment of {ONE_MODEL} for {run_request.pool} is there no more", remedy=HOW_TO_DEPLOY
            ) from error
        except httpx.HTTPStatusError as error:
            raise refusal_of(error, f"a run of {ONE_MODEL}") from error

    def _ask(self, question: Callable[[SyncPrefectClient], R]) -> R:
        def ask() -> R:
            with get_client(sync_client=True) as client:
                return question(client)

        try:
            return retry_while_unavailable(ask, self._tell)
        except httpx.HTTPStatusError as error:
            raise refusal_of(error, f"what was asked of runs of {ONE_MODEL}") from error
