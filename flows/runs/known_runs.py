"""Flow runs that were started before: found by what a person calls them, and cancelled."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from plansmith.errors import EnvironmentFault, UsageError
from plansmith.fleet.text import model_of
from plansmith.flows.prefect_api.cancelling import cancel_run
from plansmith.flows.prefect_api.patience import retry_while_unavailable
from plansmith.flows.runs.endings import RunEnded, ended_run
from plansmith.flows.runs.submitting import submitted_run
from plansmith.formatting import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

Tell = Callable[[str], None]

POLL_SECONDS = 1.0
CANCEL_SECONDS = 120.0
"""How long a cancelled run may take to end: a worker asks for what is cancelled every 10 seconds."""

_MOST_RUNS = 50
_MOST_IDS = 5


def find_run(client: SyncPrefectClient, called: str) -> FlowRun:
    """The flow run of an id or a name: of several, the one that has not ended, or else the newest.

    Args:
        client: of the API.
        called: the run's id, its name, or the name of its model.

    Raises:
        UsageError: there is none, or several of that name have not ended.
        httpx.HTTPError: the API does not answer.
    """
    found = _runs_called(client, called)
    going_on = [run for run in found if run.state is None or not run.state.is_final()]
    if len(going_on) > 1:
        ids = ", ".join(str(run.id) for run in going_on[:_MOST_IDS])
        raise UsageError(
            f"{len(going_on)} flow runs called {called} have not ended", remedy=f"name one by its id: {ids}"
        )
    if not found:
        raise UsageError(f"the Prefect server has no flow run {called}", remedy="prefect flow-run ls")
    return (going_on or found)[0]


def cancel_to_end(
    client: SyncPrefectClient,
    runs: Sequence[FlowRun],
    notice: Callable[[str], None],
    *,
    seconds: float = CANCEL_SECONDS,
) -> Iterator[RunEnded]:
    """Cancel flow runs, and give how each ended; one that has ended already is left as it is.

    Args:
        client: of the API.
        runs: which ones, in this order.
        notice: told when the API goes away for a while.
        seconds: that all of them may take.

    Raises:
        EnvironmentFault: one goes on all the same, as where its worker is dead.
        httpx.HTTPError: the API refuses it.
    """
    deadline = time.monotonic() + seconds
    for run in runs:
        if run.state is None or not (run.state.is_final() or run.state.is_cancelling()):
            # Asked twice it does no more than asked once.
            retry_while_unavailable(partial(cancel_run, client, run, "cancelled by plansmith submit --cancel"), notice)
    for run in runs:
        state = run.state
        while state is None or not state.is_final():
            state = retry_while_unavailable(partial(client.read_flow_run, run.id), notice).state
            if state is not None and state.is_final():
                break
            if time.monotonic() > deadline:
                raise EnvironmentFault(
                    f"{run.name} is still being cancelled after {format_seconds(seconds)}: its worker may be dead",
                    remedy=f"start a worker of its pool, or take it off the server: prefect flow-run delete {run.id}",
                )
            time.sleep(POLL_SECONDS)
        yield ended_run(submitted_run(run), state)


def _runs_called(client: SyncPrefectClient, called: str) -> list[FlowRun]:
    """Runs by id or name, the newest first."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName
    from prefect.client.schemas.sorting import FlowRunSort
    from prefect.exceptions import ObjectNotFound

    try:
        return [client.read_flow_run(UUID(called))]
    except ObjectNotFound:
        return []
    except ValueError:  # no id
        wanted = FlowRunFilter(name=FlowRunFilterName(like_=called))
        runs = client.read_flow_runs(
            flow_run_filter=wanted, sort=FlowRunSort.EXPECTED_START_TIME_DESC, limit=_MOST_RUNS
        )
        return [run for run in runs if called in {run.name, model_of(run.name)}]
