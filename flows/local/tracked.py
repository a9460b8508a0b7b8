"""`plansmith compile --track`: a flow run in this process, which can be cancelled through the API."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plansmith.errors import EnvironmentFault
from plansmith.flows.prefect_api.api import patient_settings, require_api

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.schemas.objects import FlowRun

    from plansmith.config.spec import ModelSpec
    from plansmith.records.release import Manifest, PublishedVersion
    from plansmith.steps.runner import Listener

api_was_lost = threading.Event()
"""Set when the API went away during a run: what is left to tell it would be tried for minutes."""


def track(spec: ModelSpec, folder: Path, listener: Listener) -> tuple[PublishedVersion, Manifest]:
    """Compile a model as a flow run of the configured Prefect API; must be called in the main thread.

    Args:
        spec: what to compile.
        folder: what relative directories in the spec start from.
        listener: told how it goes, as in a compile that is not tracked.

    Raises:
        PlansmithError: as `Compilation.run`.
        EnvironmentFault: there is no Prefect API, or it was lost before the compile began.
        KeyboardInterrupt: the run was cancelled, here or through the API.
    """
    url = require_api(instead="leave out --track")
    import httpx
    from prefect.exceptions import PrefectException
    from prefect.settings import temporary_settings

    from plansmith.flows.compile_model import compile_model
    from plansmith.flows.prefect_api.api import rooted
    from plansmith.flows.prefect_api.cancelling import cancellable
    from plansmith.flows.runs import following

    logging.raiseExceptions = False  # Prefect says on standard error, line by line, which logs it could not send
    watching = following.RunObserver(listener)
    token = following.current.set(watching)
    try:
        hears = cancellable(lambda run: _say_where(run, listener), lambda: listener.notice("cancelled through Prefect"))
        with temporary_settings(patient_settings()), hears as begin:
            own = rooted(spec, Path.cwd())  # what a spec without a file leaves open starts from where one types
            state: Any = compile_model.with_options(on_running=[begin])(own, str(folder.absolute()), return_state=True)
        cancelled = state.is_cancelling() or state.is_cancelled()
        if cancelled and watching.outcome is not None:  # it was published already
            _set_completed(state.state_details.flow_run_id)
    except (httpx.HTTPError, PrefectException) as error:
        api_was_lost.set()
        message = f"the Prefect API at {url} was lost: {error or type(error).__name__}"
        if watching.outcome is None:
            raise EnvironmentFault(
                message, remedy="run it again: it goes on after the last finished step", transient=True
            ) from error
        listener.notice(f"{message}; the compile is finished all the same, but its run will not say so")
        return watching.outcome
    except KeyboardInterrupt:
        if watching.outcome is None:
            raise
        return watching.outcome  # it came too late
    finally:
        following.current.reset(token)
    if cancelled and watching.outcome is None:
        raise KeyboardInterrupt
    if state.is_failed():
        state.result()  # raises what ended the flow
    assert watching.outcome is not None
    return watching.outcome


def _say_where(run: FlowRun, listener: Listener) -> None:
    from prefect.utilities.urls import url_for

    listener.notice(f"tracked by Prefect as {run.name}: {url_for(run) or run.id}")


def _set_completed(run: UUID) -> None:
    """Set a run to Completed that was published before its cancellation was noticed."""
    from prefect.client.orchestration import get_client
    from prefect.states import Completed

    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run, Completed(message="It was finished before it could be cancelled."), force=True)
