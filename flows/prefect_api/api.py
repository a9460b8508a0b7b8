"""Prefect API that runs are reported to and started by: checked before any work, with readable errors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from plansmith.config.targets import is_target_file
from plansmith.errors import EnvironmentFault, PlansmithError, UsageError
from plansmith.system.process import end_with
from plansmith.system.urls import without_secrets

if TYPE_CHECKING:
    import httpx
    from prefect.client.orchestration import SyncPrefectClient

    from plansmith.config.spec import ModelSpec


PROBE_SECONDS = 3

# Short waits, so that an API that hangs ends a command in seconds and not in minutes.
_REQUEST_SECONDS = 10

RETRIES = 2

CHANGING_RETRIES = 5
"""Where something is half changed when it ends: a server on SQLite that is busy answers 503."""

_HOW_TO_START = (
    "start one with `prefect server start` and tell it with `prefect config set"
    " PREFECT_API_URL=http://127.0.0.1:4200/api`"
)

_REFUSED = {401, 403}

_VARIABLE = "PLANSMITH_FLOWS_SERVED_BY"
_GRACE_SECONDS = 30.0
_HALF_LINE = 120
_FOLDERS = ("artifacts", "repository", "tritonserver")


def require_api(*, instead: str = "") -> str:
    """Return the configured Prefect API's URL for display, after it has responded and granted access.

    Call this before anything else imports prefect: it keeps Prefect from reporting its use to its makers and from
    writing to the terminal, unless the environment says otherwise.

    Args:
        instead: how to do without an API, where that can be done.

    Raises:
        EnvironmentFault: Prefect is not installed, no API is configured, or it does not answer as it should.
    """
    remedy = f"{_HOW_TO_START}, or {instead}" if instead else _HOW_TO_START
    shown = configured_api(remedy=remedy)
    _require_health(shown, remedy)
    with asking(shown) as client:
        client.read_flows(limit=1)  # health needs no login, this does
    return shown


def configured_api(*, remedy: str = _HOW_TO_START) -> str:
    """Return the configured Prefect API's URL for display, without contacting it; otherwise as `require_api`.

    Args:
        remedy: what to do where none is configured.

    Raises:
        EnvironmentFault: Prefect is not installed, refuses its settings, or no API is configured.
    """
    try:
        shown = known_api()
    except ImportError as error:
        raise EnvironmentFault("Prefect is not installed", remedy="pip install 'plansmith[flows]'") from error
    if not shown:
        raise EnvironmentFault("no Prefect API is configured", remedy=remedy)
    return shown


def known_api() -> str:
    """Return the configured Prefect API's URL for display; empty if none is configured.

    Raises:
        ImportError: Prefect is not installed.
        EnvironmentFault: it refuses its settings.
    """
    os.environ.setdefault("DO_NOT_TRACK", "1")
    for setting in ("LOGGING_HANDLERS_CONSOLE_LEVEL", "INTERNAL_LOGGING_LEVEL"):
        os.environ.setdefault(f"PREFECT_{setting}", "CRITICAL")
    from prefect.settings import PREFECT_API_URL

    try:
        url: str | None = PREFECT_API_URL.value()
    except ValidationError as error:
        message = "; ".join(problem["msg"] for problem in error.errors())
        raise EnvironmentFault(
            f"Prefect refuses its settings: {message}",
            remedy="correct the variables that begin with PREFECT_, or its profile",
        ) from None
    return without_secrets(url) if url else ""


@contextmanager
def asking(shown: str, *, retries: int = RETRIES) -> Iterator[SyncPrefectClient]:
    """API client for the duration of a block.

    Args:
        shown: the URL of the API, from `require_api`.
        retries: how often it asks again by itself.

    Raises:
        EnvironmentFault: the API cannot be reached, or does not answer as it should.
    """
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.settings import temporary_settings

    try:
        with temporary_settings(patient_settings(retries)), get_client(sync_client=True) as client:
            yield client
    except httpx.HTTPError as error:
        raise fault_from(error, shown) from error


def fault_from(error: Exception, shown: str, *, remedy: str = _HOW_TO_START) -> EnvironmentFault:
    """Convert an unexpected API response or failure to an error for the user.

    Args:
        error: of httpx or Prefect.
        shown: the URL of the API, fit to be shown.
        remedy: what to do where it cannot be reached.
    """
    import httpx
    from prefect.settings import PREFECT_API_URL

    if isinstance(error, httpx.HTTPStatusError):
        return _fault_from_status(error.response, shown)
    reason = str(error).replace(str(PREFECT_API_URL.value()), shown) or type(error).__name__
    return EnvironmentFault(f"the Prefect API at {shown} cannot be reached: {reason}", remedy=remedy, transient=True)


def patient_settings(retries: int = RETRIES) -> dict[object, object]:
    """Return Prefect settings for a command that waits for its responses."""
    from prefect import settings

    return {
        settings.PREFECT_API_REQUEST_TIMEOUT: _REQUEST_SECONDS,
        settings.PREFECT_CLIENT_MAX_RETRIES: retries,
        # Heartbeats cost every run a second at its end, and are for runs that a worker has started.
        settings.PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
    }


def _require_health(shown: str, remedy: str) -> None:
    """Check the API's health as Prefect does, with the certificates, headers and proxies of its settings."""
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_REQUEST_TIMEOUT, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    patience = {PREFECT_API_REQUEST_TIMEOUT: PROBE_SECONDS, PREFECT_CLIENT_MAX_RETRIES: 0}
    try:
        with temporary_settings(patience), get_client(sync_client=True) as client:
            client.request("GET", "/health")
    except httpx.HTTPStatusError as error:
        if error.response.status_code in _REFUSED:
            raise _fault_from_status(error.response, shown) from error
        raise EnvironmentFault(
            f"{shown} is no Prefect API: it answers with status {error.response.status_code}",
            remedy="prefect config set PREFECT_API_URL=<address of the server>/api, such as http://127.0.0.1:4200/api",
        ) from error
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise fault_from(error, shown, remedy=remedy) from error


def _fault_from_status(answer: httpx.Response, shown: str) -> EnvironmentFault:
    status = answer.status_code
    if status in _REFUSED and "CSRF" in answer.text:
        return EnvironmentFault(
            f"the Prefect API at {shown} wants a CSRF token, and Prefect's client was told to send none",
            remedy="prefect config unset PREFECT_CLIENT_CSRF_SUPPORT_ENABLED",
        )
    if status in _REFUSED:
        return EnvironmentFault(
            f"the Prefect API at {shown} does not let us in",
            remedy="prefect config set PREFECT_API_AUTH_STRING=<user>:<password>",
        )
    return EnvironmentFault(
        f"the Prefect API at {shown} answers with status {status}",
        remedy="see the log of the Prefect server",
        transient=status >= 500,
    )


def prepare_prefect(console: Literal["INFO", "CRITICAL"]) -> None:
    """Disable Prefect's telemetry and its console messages below this severity.

    What the environment says otherwise stands.

    Raises:
        EnvironmentFault: Prefect is not installed.
    """
    os.environ.setdefault("DO_NOT_TRACK", "1")
    for setting in ("LOGGING_HANDLERS_CONSOLE_LEVEL", "INTERNAL_LOGGING_LEVEL"):
        os.environ.setdefault(f"PREFECT_{setting}", console)
    try:
        import prefect.settings  # noqa: F401 - whether it is there
    except ImportError as error:
        raise EnvironmentFault("Prefect is not installed", remedy="pip install 'plansmith[flows]'") from error


def read_secret(name: str) -> str:
    """Return the value of a Secret block.

    Raises:
        UsageError: there is no such block, or it holds no text.
        EnvironmentFault: Prefect is not installed, or its API does not answer as it should.
    """
    shown = configured_api()
    from prefect.blocks.system import Secret

    with asking(shown) as client:
        # Prefect's own `load` says the same for a block that is not there and for an API that is away.
        client.read_flows(limit=1)
        try:
            block: Any = Secret.load(name)
        except ValueError as error:
            raise UsageError(
                f"the Prefect server has no Secret block {name}", remedy="make one in Prefect's pages under Blocks"
            ) from error
    value: object = block.get()
    if not isinstance(value, str):
        raise UsageError(f"the Secret block {name} holds no text", remedy="make it anew, with a text as its value")
    return value


def be_serving_process() -> None:
    """Mark this process as the serving process, for the runs that it starts from now on."""
    os.environ[_VARIABLE] = str(os.getpid())


@cache
def end_with_serving_process() -> None:
    """End this run, and report it, once the process that serves the flows has ended, for whatever reason.

    The runs of a worker go on without it.
    """
    from prefect.runtime import flow_run

    serving = os.environ.get(_VARIABLE)
    if serving:
        end_with(int(serving), before=partial(_say_crashed, str(flow_run.id)), grace_seconds=_GRACE_SECONDS)


def _say_crashed(run: str) -> None:
    """Mark a run as crashed when its serving process ends.

    An unreachable API notices the missing heartbeats instead.
    """
    from prefect.states import Crashed

    with suppress(PlansmithError), asking(require_api(), retries=0) as client:
        client.set_flow_run_state(run, Crashed(message="The process that serves the flows has ended."))


def entrypoint_of(flow: str) -> str:
    """Return a flow's entrypoint for deployments, a module path: `compile-model` is in `flows/compile_model.py`."""
    function = flow.replace("-", "_")
    return f"plansmith.flows.{function}.{function}"


def load_flow(flow: str) -> Any:
    """Load a flow by name; imports Prefect."""
    module, _, function = entrypoint_of(flow).rpartition(".")
    return getattr(import_module(module), function)


@cache
def schema_of(flow: str) -> dict[str, Any]:
    """Return the parameter schema of a flow, as Prefect's server stores it with a deployment."""
    from prefect.utilities.callables import parameter_schema

    return parameter_schema(load_flow(flow)).model_dump(mode="json", exclude_unset=True)


def parameter_problems(
    values: Mapping[str, Any], schema: Mapping[str, Any], *, partly: bool = False
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the errors in a flow's parameters: the path of keys, and the message without it.

    Args:
        values: the parameters by name.
        schema: as `schema_of`, or that of a deployment.
        partly: whether others are given later, so that none is missing yet.
    """
    from prefect.utilities.schema_tools import validate

    properties: Mapping[str, Any] = schema.get("properties", {})
    for name in values:
        if name not in properties:
            yield (name,), f"{name!r} is no parameter of this flow, which has {', '.join(sorted(properties))}"
    accepted = {name: value for name, value in values.items() if name in properties}
    for error in validate(accepted, dict(schema), preprocess=True, ignore_required=partly):
        keys = tuple(str(key) for key in error.absolute_path)
        text = f"{error.instance!r} is none of what may stand there" if error.validator == "anyOf" else error.message
        yield keys, f"{'.'.join(keys)}: {shortened(text)}" if keys else shortened(text)


def shortened(text: str) -> str:
    """Shorten a text to one line; an error message follows the value, which may be long."""
    line = " ".join(text.split())
    return line if len(line) <= 2 * _HALF_LINE else f"{line[:_HALF_LINE]} … {line[-_HALF_LINE:]}"


def rooted(spec: ModelSpec, folder: Path) -> ModelSpec:
    """Return a spec whose own folders and target file are relative to a folder, not the working directory.

    Its source, data and stores start from that folder anyway.
    """
    named = {key: value for key in _FOLDERS if (value := getattr(spec, key))}
    if is_target_file(spec.target):
        named["target"] = spec.target
    return spec.model_copy(update={key: str(folder / value) for key, value in named.items()})
