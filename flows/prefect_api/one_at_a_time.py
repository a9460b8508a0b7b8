"""One run of a deployment at a time, where two would do the same work twice.

Of a flow that looks for work, the later run ends at once. One that is told of work waits for the earlier one, which may
not have seen it; of several that wait, the last one does the work of all.

This stands in place of a limit of the deployment: Prefect's engine ends a healthy run whose slot's lease is gone, as it
is with a server that kept its leases in memory and was restarted (prefect.flow_engine, `maintain_concurrency_lease`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Completed
from prefect.utilities.urls import url_for

from plansmith.flows.prefect_api.patience import retry_while_unavailable

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State

SKIPPED = "Skipped"

_LOOK_SECONDS = 5


def skipped() -> State[Any] | None:
    """The state in which the current flow run is to end because another does the same; None where it is to go on.

    Raises:
        EnvironmentFault: the Prefect API was away for too long.
    """
    log = get_run_logger()

    def ask() -> FlowRun | None:
        with get_client(sync_client=True) as client:
            return earlier_run(client, UUID(flow_run.get_id()))

    other = retry_while_unavailable(ask, log.warning)
    if other is None:
        return None
    words = f"skipped: {other.name} goes on and does the same: {url_for(other) or other.id}"
    log.info("%s", words)
    return Completed(name=SKIPPED, message=words)


def superseded() -> State[Any] | None:
    """Wait until no earlier run of the deployment runs; the state in which to end where a later one waits as well.

    Raises:
        EnvironmentFault: the Prefect API was away for too long.
    """
    log = get_run_logger()
    run, waits_for = UUID(flow_run.get_id()), ""

    def ask() -> tuple[FlowRun | None, FlowRun | None]:
        with get_client(sync_client=True) as client:
            return earlier_run(client, run), later_run(client, run)

    while True:
        earlier, later = retry_while_unavailable(ask, log.warning)
        if earlier is None:
            return None
        if later is not None:
            words = f"skipped: {later.name} waits as well, and does what this run would"
            log.info("%s", words)
            return Completed(name=SKIPPED, message=words)
        if waits_for != str(earlier.id):
            waits_for = str(earlier.id)
            log.info("waiting for %s: %s", earlier.name, url_for(earlier) or earlier.id)
        time.sleep(_LOOK_SECONDS)


def earlier_run(client: SyncPrefectClient, run: UUID) -> FlowRun | None:
    """The run of the same deployment, with the same parameters, that was running before a run was; None without one.

    Of two that begin together each may see the other: the server's times, and then the ids, say which of them goes on.

    Args:
        client: of the API.
        run: one that is running.
    """
    this, others = _runs_beside(client, run)
    return min((one for one in others if _began(one) < _began(this)), key=_began, default=None)


def later_run(client: SyncPrefectClient, run: UUID) -> FlowRun | None:
    """As `earlier_run`, the last one that began to run after a run did."""
    this, others = _runs_beside(client, run)
    return max((one for one in others if _began(one) > _began(this)), key=_began, default=None)


def _runs_beside(client: SyncPrefectClient, run: UUID) -> tuple[FlowRun, list[FlowRun]]:
    """A run, and those of the same deployment and with the same parameters that are running, perhaps with itself."""
    this = client.read_flow_run(run)
    if this.deployment_id is None:
        return this, []
    running = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING])))
    its_own = DeploymentFilter(id=DeploymentFilterId(any_=[this.deployment_id]))
    found = client.read_flow_runs(flow_run_filter=running, deployment_filter=its_own)
    return this, [one for one in found if one.parameters == this.parameters]


def _began(run: FlowRun) -> tuple[str, str]:
    """When a running run came to run, by the clock of the server."""
    return (run.state.timestamp.isoformat() if run.state is not None else "", str(run.id))
