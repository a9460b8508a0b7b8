"""`plansmith compile --track`: a flow run in this process, and its cancellation through the API."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.errors import EnvironmentFault
from plansmith.flows.api import patient_settings, require_api

if TYPE_CHECKING:
    from types import FrameType
    from uuid import UUID

    from plansmith.config import ModelSpec
    from plansmith.manifest import Manifest, PublishedVersion
    from plansmith.stages import Listener

POLL_SECONDS = 2

api_was_lost = threading.Event()
"""Set when the API went away during a run: what is left to tell it would be tried for minutes."""

# Not SIGINT: a shell script starts what it puts into the background with SIGINT ignored.
_CANCEL = signal.SIGUSR1


def track(spec: ModelSpec, folder: Path, listener: Listener) -> tuple[PublishedVersion, Manifest]:
    """Compile a model as a flow run of the configured Prefect API; call it in the main thread.

    Args:
        spec: what to compile.
        folder: what relative directories in the spec start from.
        listener: told how it goes, as in a compile that is not tracked.

    Raises:
        PlansmithError: as `Compilation.run`.
        EnvironmentFault: there is no Prefect API, or it was lost before the compile began.
        KeyboardInterrupt: the run was cancelled, here or through the API.
    """
    url = require_api()
    import httpx
    from prefect.exceptions import PrefectException
    from prefect.settings import temporary_settings

    from plansmith.flows import onlookers
    from plansmith.flows.compile_model import compile_model

    logging.raiseExceptions = False  # Prefect says on standard error, line by line, which logs it could not send
    watching = onlookers.Onlooker(listener)
    token = onlookers.current.set(watching)
    try:
        with temporary_settings(patient_settings()), _cancellable(listener) as begin:
            state: Any = compile_model.with_options(on_running=[begin])(spec, str(folder.absolute()), return_state=True)
        cancelled = state.is_cancelling() or state.is_cancelled()
        if cancelled and watching.outcome is not None:  # it was published already
            _set_completed(state.state_details.flow_run_id)
    except (httpx.HTTPError, PrefectException) as error:
        api_was_lost.set()
        said = f"the Prefect API at {url} was lost: {error or type(error).__name__}"
        if watching.outcome is None:
            raise EnvironmentFault(
                said, remedy="run it again: it goes on after the last finished step", transient=True
            ) from error
        listener.notice(f"{said}; the compile is finished all the same, but its run will not say so")
        return watching.outcome
    except KeyboardInterrupt:
        if watching.outcome is None:
            raise
        return watching.outcome  # it came too late
    finally:
        onlookers.current.reset(token)
    if cancelled and watching.outcome is None:
        raise KeyboardInterrupt
    if state.is_failed():
        state.result()  # raises what ended the flow
    assert watching.outcome is not None
    return watching.outcome


@contextmanager
def _cancellable(listener: Listener) -> Iterator[Any]:
    """A hook for a run that begins: from then on, until the block ends, its cancellation interrupts this thread."""
    ended = threading.Event()
    deciding = threading.Lock()

    def begin(flow: Any, flow_run: Any, state: Any) -> None:
        del flow, state
        from prefect.utilities.urls import url_for

        listener.notice(f"tracked by Prefect as {flow_run.name}: {url_for(flow_run) or flow_run.id}")
        # Prefect's settings are those of a context, which a thread does not inherit.
        threading.Thread(target=copy_context().run, args=(watch, flow_run.id), daemon=True).start()

    def watch(run: UUID) -> None:
        while not ended.wait(POLL_SECONDS):
            if _is_cancelling(run):
                with deciding:
                    if not ended.is_set():
                        listener.notice("cancelled through Prefect")
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
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.exceptions import PrefectException

    try:
        with get_client(sync_client=True) as client:
            state = client.read_flow_run(run).state
    except (httpx.HTTPError, PrefectException):
        return False
    return state is not None and (state.is_cancelling() or state.is_cancelled())


def _set_completed(run: UUID) -> None:
    """Tell the API that a run was published before its cancellation was heard."""
    from prefect.client.orchestration import get_client
    from prefect.states import Completed

    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run, Completed(message="It was finished before it could be cancelled."), force=True)
