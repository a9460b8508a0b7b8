"""The Prefect API that runs are reported to and started by: found and asked before any work, its faults in words."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from pydantic import ValidationError

from plansmith.errors import EnvironmentFault
from plansmith.system.urls import without_secrets

if TYPE_CHECKING:
    import httpx
    from prefect.client.orchestration import SyncPrefectClient

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


def require_api(*, instead: str = "") -> str:
    """The URL of the configured Prefect API, fit to be shown, once it has answered and let us in.

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
    """The URL of the configured Prefect API, fit to be shown, whether it answers or not; as `require_api` otherwise.

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
    """The URL of the configured Prefect API, fit to be shown; empty where none is configured.

    Raises:
        ImportError: Prefect is not installed.
        EnvironmentFault: it refuses its settings.
    """
    os.environ.setdefault("DO_NOT_TRACK", "1")
    for what in ("LOGGING_HANDLERS_CONSOLE_LEVEL", "INTERNAL_LOGGING_LEVEL"):
        os.environ.setdefault(f"PREFECT_{what}", "CRITICAL")
    from prefect.settings import PREFECT_API_URL

    try:
        url: str | None = PREFECT_API_URL.value()
    except ValidationError as error:
        said = "; ".join(one["msg"] for one in error.errors())
        raise EnvironmentFault(
            f"Prefect refuses its settings: {said}",
            remedy="correct the variables that begin with PREFECT_, or its profile",
        ) from None
    return without_secrets(url) if url else ""


@contextmanager
def asking(shown: str, *, retries: int = RETRIES) -> Iterator[SyncPrefectClient]:
    """A client of the API, for the length of a block.

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
    """What an API that does not answer as it should is to the user.

    Args:
        error: of httpx or Prefect.
        shown: the URL of the API, fit to be shown.
        remedy: what to do where it cannot be reached.
    """
    import httpx
    from prefect.settings import PREFECT_API_URL

    if isinstance(error, httpx.HTTPStatusError):
        return _fault_from_status(error.response, shown)
    said = str(error).replace(str(PREFECT_API_URL.value()), shown) or type(error).__name__
    return EnvironmentFault(f"the Prefect API at {shown} cannot be reached: {said}", remedy=remedy, transient=True)


def patient_settings(retries: int = RETRIES) -> dict[object, object]:
    """Settings of Prefect for the time of a command that waits for its answers."""
    from prefect import settings

    return {
        settings.PREFECT_API_REQUEST_TIMEOUT: _REQUEST_SECONDS,
        settings.PREFECT_CLIENT_MAX_RETRIES: retries,
        # Heartbeats cost every run a second at its end, and are for runs that a worker has started.
        settings.PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
    }


def _require_health(shown: str, remedy: str) -> None:
    """Ask it as Prefect does, with the certificates, headers and proxies that its settings name."""
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
    """Keep Prefect from reporting its use to its makers, and from writing less grave things than these to the terminal.

    What the environment says otherwise stands.

    Raises:
        EnvironmentFault: Prefect is not installed.
    """
    os.environ.setdefault("DO_NOT_TRACK", "1")
    for what in ("LOGGING_HANDLERS_CONSOLE_LEVEL", "INTERNAL_LOGGING_LEVEL"):
        os.environ.setdefault(f"PREFECT_{what}", console)
    try:
        import prefect.settings  # noqa: F401 - whether it is there
    except ImportError as error:
        raise EnvironmentFault("Prefect is not installed", remedy="pip install 'plansmith[flows]'") from error
