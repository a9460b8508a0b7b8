"""Cancellation of a flow run, passed on to the runs that it started."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterParentFlowRunId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.exceptions import TerminationSignal
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled, Cancelling, Completed
from prefect.utilities.urls import url_for

from plansmith.flows.prefect_api.patience import UNTAKEN, retry_while_unavailable

if TYPE_CHECKING:
    from types import FrameType

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State


POLL_SECONDS = 2

_GOING_ON = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.PAUSED]

# Not SIGINT: a shell script starts what it puts into the background with SIGINT ignored.
_CANCEL = signal.SIGUSR1

SKIPPED = "Skipped"
_LOOK_SECONDS = 5


@contextmanager
def cancellable(begun: Callable[[FlowRun], None], heard: Callable[[], None]) -> Iterator[Any]:
    """Hook for a run of this process: cancelling it interrupts the block.

    Use it in the main thread, which gets a KeyboardInterrupt.

    Args:
        begun: told of the run once it is one.
        heard: told before a cancellation through the API interrupts.
    """
    ended = threading.Event()
    deciding = threading.Lock()

    def begin(flow: Any, flow_run: Any, state: Any) -> None:
        del flow, state
        begun(flow_run)
        # Prefect's settings are those of a context, which a thread does not inherit.
        threading.Thread(target=copy_context().run, args=(watch, flow_run.id), daemon=True).start()

    def watch(run: UUID) -> None:
        while not ended.wait(POLL_SECONDS):
            if _is_cancelling(run):
                with deciding:
                    if not ended.is_set():
                        heard()
                        signal.pthread_kill(caller, _CANCEL)
                return

    caller = threading.get_ident()
    before = signal.signal(_CANCEL, _interrupt)
    try:
        try:
            yield begin
        finally:
            with deciding:
                ended.set()
    finally:
        signal.signal(_CANCEL, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt


def _is_cancelling(run: UUID) -> bool:
    """Whether the API reports a cancellation; after a failed request, the next poll may find it."""
    try:
        with get_client(sync_client=True) as client:
            state = client.read_flow_run(run).state
    except UNTAKEN:
        return False
    return state is not None and (state.is_cancelling() or state.is_cancelled())


def cancel_children(flow: Any, flow_run: FlowRun, state: Any) -> None:
    """Hook for a cancelled run: cancels its active child runs.

    A worker calls it in a process that it starts for that, when the one of the run has ended.
    """
    del flow, state
    _cancel_children_of(flow_run.id)


@contextmanager
def passing_on(run: UUID) -> Iterator[None]:
    """Cancellation forwarding: when a worker cancels the run during the block, its child runs are cancelled at once.

    The worker sends SIGTERM, and calls hooks only when the process has ended, in another that imports the flow first,
    which takes many seconds on a busy machine; a worker that itself is to end sends the same, and then those runs go
    on. Prefect's server passes a cancellation on by itself, after up to twenty seconds
    (prefect.server.services.cancellation_cleanup).
    """
    try:
        yield
    except TerminationSignal:
        if _is_cancelling(run):
            _cancel_children_of(run)
        raise


def _cancel_children_of(parent: UUID) -> None:
    """Cancel the child runs; those of another fleet that this run only waited for continue."""
    going_on = FlowRunFilter(
        parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[parent]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_GOING_ON)),
    )
    ids: set[UUID] = set()
    with get_client(sync_client=True) as client:
        # Those that are asked leave the filter, so that every page is the first one.
        while runs := [
            candidate for candidate in client.read_flow_runs(flow_run_filter=going_on) if candidate.id not in ids
        ]:
            for run in runs:
                cancel_run(client, run, "the fleet that started it was cancelled")
                ids.add(run.id)


def cancel_run(client: SyncPrefectClient, run: FlowRun, why: str) -> None:
    """Cancel a run, wherever it is executed.

    Args:
        client: of the API.
        run: one that goes on.
        why: the message of its new state.
    """
    # A run within another's process has nobody who would see that it is to be cancelled.
    new: State = Cancelling(message=why) if run.deployment_id else Cancelled(message=why)
    client.set_flow_run_state(run.id, new, force=not run.deployment_id)


def skipped() -> State[Any] | None:
    """Return the final state for a flow run that duplicates another; None if it should continue.

    Raises:
        EnvironmentFault: the Prefect API was away for too long.
    """
    log = get_run_logger()

    def ask() -> FlowRun | None:
        with get_client(sync_client=True) as client:
            return earlier_run(client, UUID(flow_run.get_id()))

    earlier = retry_while_unavailable(ask, log.warning)
    if earlier is None:
        return None
    text = f"skipped: {earlier.name} goes on and does the same: {url_for(earlier) or earlier.id}"
    log.info("%s", text)
    return Completed(name=SKIPPED, message=text)


def superseded() -> State[Any] | None:
    """Wait until no earlier run of the deployment is active; return the final state if a later one waits too.

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
            text = f"skipped: {later.name} waits as well, and does what this run would"
            log.info("%s", text)
            return Completed(name=SKIPPED, message=text)
        if waits_for != str(earlier.id):
            waits_for = str(earlier.id)
            log.info("waiting for %s: %s", earlier.name, url_for(earlier) or earlier.id)
        time.sleep(_LOOK_SECONDS)


def earlier_run(client: SyncPrefectClient, run: UUID) -> FlowRun | None:
    """Return the run of the same deployment and parameters that was already running before a run; None if none was.

    Of two that begin together each may see the other: the server's times, and then the ids, say which of them goes on.

    Args:
        client: of the API.
        run: one that is running.
    """
    this, others = _runs_beside(client, run)
    return min((candidate for candidate in others if _began(candidate) < _began(this)), key=_began, default=None)


def later_run(client: SyncPrefectClient, run: UUID) -> FlowRun | None:
    """As `earlier_run`, for the last run that started after a run."""
    this, others = _runs_beside(client, run)
    return max((candidate for candidate in others if _began(candidate) > _began(this)), key=_began, default=None)


def _runs_beside(client: SyncPrefectClient, run: UUID) -> tuple[FlowRun, list[FlowRun]]:
    """A run, and the running ones of the same deployment with the same parameters, possibly including itself."""
    this = client.read_flow_run(run)
    if this.deployment_id is None:
        return this, []
    running = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING])))
    its_own = DeploymentFilter(id=DeploymentFilterId(any_=[this.deployment_id]))
    runs = client.read_flow_runs(flow_run_filter=running, deployment_filter=its_own)
    return this, [candidate for candidate in runs if candidate.parameters == this.parameters]


def _began(run: FlowRun) -> tuple[str, str]:
    """When a run entered its running state, by the server's clock."""
    return (run.state.timestamp.isoformat() if run.state is not None else "", str(run.id))
