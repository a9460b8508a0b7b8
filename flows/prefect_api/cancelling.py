"""Cancellation that a flow run hears of, and passes on to the runs that it started."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterParentFlowRunId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.exceptions import TerminationSignal
from prefect.states import Cancelled, Cancelling

from plansmith.flows.prefect_api.patience import UNTAKEN

if TYPE_CHECKING:
    from types import FrameType
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State

POLL_SECONDS = 2

_GOING_ON = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.PAUSED]

# Not SIGINT: a shell script starts what it puts into the background with SIGINT ignored.
_CANCEL = signal.SIGUSR1


@contextmanager
def cancellable(begun: Callable[[FlowRun], None], heard: Callable[[], None]) -> Iterator[Any]:
    """A hook for a run of this process: from its beginning until the block ends, its cancellation interrupts.

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
    """Whether the API says so; what it cannot say now it may say next time."""
    try:
        with get_client(sync_client=True) as client:
            state = client.read_flow_run(run).state
    except UNTAKEN:
        return False
    return state is not None and (state.is_cancelling() or state.is_cancelled())


def cancel_children(flow: Any, flow_run: FlowRun, state: Any) -> None:
    """A hook for a cancelled run: cancels the runs that it started and that go on.

    A worker calls it in a process that it starts for that, when the one of the run has ended.
    """
    del flow, state
    _cancel_children_of(flow_run.id)


@contextmanager
def passing_on(run: UUID) -> Iterator[None]:
    """While a block lasts, the cancellation of its run by a worker goes on to the runs that it started, at once.

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
    """Runs that this one only waited for, because another fleet had started them, go on."""
    going_on = FlowRunFilter(
        parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[parent]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_GOING_ON)),
    )
    asked: set[UUID] = set()
    with get_client(sync_client=True) as client:
        # Those that are asked leave the filter, so that every page is the first one.
        while runs := [one for one in client.read_flow_runs(flow_run_filter=going_on) if one.id not in asked]:
            for run in runs:
                cancel_run(client, run, "the fleet that started it was cancelled")
                asked.add(run.id)


def cancel_run(client: SyncPrefectClient, run: FlowRun, why: str) -> None:
    """Cancel a run, whoever carries it out.

    Args:
        client: of the API.
        run: one that goes on.
        why: the message of its new state.
    """
    # A run within another's process has nobody who would see that it is to be cancelled.
    new: State = Cancelling(message=why) if run.deployment_id else Cancelled(message=why)
    client.set_flow_run_state(run.id, new, force=not run.deployment_id)
