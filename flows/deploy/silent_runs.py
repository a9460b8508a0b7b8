"""Runs of a service that died while Prefect's server was away, or before it knew of them: called crashed afterwards.

The server's automations look for silence from an event on; one that the server has lost, as in its own restart, begins
no silence, and such a run would count as running, or as taken up, for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from plansmith.flows.deploy.automations import HEARTBEAT, SILENT_STATES, silence_limit, silence_message
from plansmith.flows.deploy.deployments import service_tag

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun
    from prefect.client.schemas.responses import OrchestrationResult

_PAGE = 200


def crash_silent_runs(client: SyncPrefectClient, tags: Iterable[str]) -> Iterator[str]:
    """Call the runs of services crashed that were silent for too long, and give their names.

    A running run is silent since its last heartbeat, one that a worker took up since then. How long that may be is what
    the service's automations on the server say; without them nothing is done.

    Args:
        client: of the server.
        tags: those of services say which ones; others are not looked at.

    Raises:
        httpx.HTTPError: the server does not answer.
    """
    for service in (tag.removeprefix(service_tag("")) for tag in tags if tag.startswith(service_tag(""))):
        limits = {state: silence_limit(client, service, state) for state in SILENT_STATES}
        now = _server_time(client)
        for state, limit in limits.items():
            if limit is None:
                continue
            for run in _runs(client, service_tag(service), state):
                silent = (now - _heard_of(client, run, now)).total_seconds()
                if silent > limit and _crash(client, run, silence_message(state, silent)):
                    yield run.name


def _server_time(client: SyncPrefectClient) -> datetime:
    """Now, by the clock that says when heartbeats were received."""
    return parsedate_to_datetime(client.hello().headers["date"])


def _runs(client: SyncPrefectClient, tag: str, state: str) -> list[FlowRun]:
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.client.schemas.sorting import FlowRunSort

    wanted = FlowRunFilter.model_validate({"tags": {"all_": [tag]}, "state": {"type": {"any_": [state]}}})
    found: list[FlowRun] = []
    while True:
        page = client.read_flow_runs(
            flow_run_filter=wanted, sort=FlowRunSort.START_TIME_ASC, limit=_PAGE, offset=len(found)
        )
        found += page
        if len(page) < _PAGE:
            return found


def _heard_of(client: SyncPrefectClient, run: FlowRun, now: datetime) -> datetime:
    """When the server last heard of a run: its heartbeat, or its state."""
    from prefect.events.filters import EventFilter, EventNameFilter, EventOrder, EventResourceFilter

    beats = EventFilter(
        event=EventNameFilter(name=[HEARTBEAT]),
        resource=EventResourceFilter(id=[f"prefect.flow-run.{run.id}"]),
        order=EventOrder.DESC,
    )
    heard = [event.received for event in client.read_events(beats, limit=1).events]
    return max([*heard, run.state.timestamp if run.state else now])


def _crash(client: SyncPrefectClient, run: FlowRun, message: str) -> bool:
    """Whether the server took it: a run that has just ended stays as it ended."""
    from prefect.client.schemas.responses import SetStateStatus
    from prefect.states import Crashed

    answer: OrchestrationResult[Any] = client.set_flow_run_state(run.id, Crashed(message=message))
    return answer.status == SetStateStatus.ACCEPT
