"""The Prefect API that a tracked compile reports to: found and asked before any work is done."""

from __future__ import annotations

import os

from plansmith.addresses import without_secrets
from plansmith.errors import EnvironmentFault

PROBE_SECONDS = 3

# Short waits, so that an API that hangs ends a run in seconds and not in minutes.
_REQUEST_SECONDS = 10
_RETRIES = 2

_HOW_TO_START = (
    "start one with `prefect server start` and tell it with `prefect config set"
    " PREFECT_API_URL=http://127.0.0.1:4200/api`, or leave out --track"
)


def require_api() -> str:
    """The URL of the configured Prefect API, fit to be shown, once it has answered and let us in.

    Call this before anything else imports prefect: it keeps Prefect from reporting its use to its makers and from
    writing to the terminal, unless the environment says otherwise.

    Raises:
        EnvironmentFault: Prefect is not installed, no API is configured, or it does not answer as it should.
    """
    os.environ.setdefault("DO_NOT_TRACK", "1")
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    try:
        from prefect.settings import PREFECT_API_URL
    except ImportError as error:
        raise EnvironmentFault("Prefect is not installed", remedy="pip install 'plansmith[flows]'") from error
    url: str | None = PREFECT_API_URL.value()
    if not url:
        raise EnvironmentFault("no Prefect API is configured", remedy=_HOW_TO_START)
    shown = without_secrets(url)
    _require_answer(url, shown)
    return shown


def _require_answer(url: str, shown: str) -> None:
    """Ask for health, which needs no login, and then for something that does."""
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.exceptions import PrefectHTTPStatusError
    from prefect.settings import temporary_settings

    try:
        answer = httpx.get(f"{url.rstrip('/')}/health", timeout=PROBE_SECONDS)
        answer.raise_for_status()
        with temporary_settings(patient_settings()), get_client(sync_client=True) as client:
            client.read_flows(limit=1)
    except PrefectHTTPStatusError as error:
        if error.response.status_code in {401, 403}:
            raise EnvironmentFault(
                f"the Prefect API at {shown} does not let us in",
                remedy="prefect config set PREFECT_API_AUTH_STRING=<user>:<password>",
            ) from error
        raise EnvironmentFault(
            f"the Prefect API at {shown} answers with status {error.response.status_code}",
            remedy="see the log of the Prefect server",
        ) from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise EnvironmentFault(
            f"the Prefect API at {shown} cannot be reached: {str(error).replace(url, shown) or type(error).__name__}",
            remedy=_HOW_TO_START,
        ) from error


def patient_settings() -> dict[object, object]:
    """Settings of Prefect for the time of a tracked compile."""
    from prefect import settings

    return {
        settings.PREFECT_API_REQUEST_TIMEOUT: _REQUEST_SECONDS,
        settings.PREFECT_CLIENT_MAX_RETRIES: _RETRIES,
        # Heartbeats cost every run a second at its end, and are for runs that a worker has started.
        settings.PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
    }
