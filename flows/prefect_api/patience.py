"""Retries for a Prefect API that is temporarily unavailable, such as during a restart or a network failure."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import httpx
from prefect.exceptions import PrefectException, PrefectHTTPStatusError

from plansmith.errors import EnvironmentFault, PlansmithError, UsageError, first_line

R = TypeVar("R")

AWAY_SECONDS = 600.0
"""How long an API may be away before it is given up."""

UNTAKEN = (httpx.HTTPError, PrefectException, RuntimeError)
"""What Prefect's client raises where the API is away or refuses something; where it was never there, a RuntimeError."""

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 15.0
_SERVER_ERROR = 500
_MOST_WORDS = 500
_TOO_MUCH = "Flow run parameters must be less than"


def is_away(error: BaseException) -> bool:
    """Whether an error means that the API is unavailable, not that it refuses the request."""
    if isinstance(error, PrefectHTTPStatusError | httpx.HTTPStatusError):
        return error.response.status_code >= _SERVER_ERROR
    # Prefect's client says so in its own words when it cannot even ask for the server's version.
    return isinstance(error, httpx.TransportError) or (
        isinstance(error, RuntimeError) and "Failed to reach API" in str(error)
    )


def retry_while_unavailable(
    ask: Callable[[], R],
    tell: Callable[[str], None],
    *,
    seconds: float = AWAY_SECONDS,
    pause: float = _FIRST_PAUSE_SECONDS,
) -> R:
    """Retry a request with increasing pauses until the API responds.

    Args:
        ask: asks it once; asking twice must not do more than asking once.
        tell: told once that the API is away, and once that it is there again.
        seconds: after which it is given up.
        pause: the first one's seconds.

    Raises:
        EnvironmentFault: it was away for longer.
    """
    deadline, is_reported = time.monotonic() + seconds, False
    while True:
        try:
            answer = ask()
        except (httpx.HTTPError, RuntimeError) as error:
            if not is_away(error):
                raise
            if time.monotonic() + pause > deadline:
                away = f"was away for {seconds:.0f} s" if seconds else "is away"
                raise EnvironmentFault(
                    f"the Prefect API {away}: {first_line(error)}",
                    remedy="see the log of the Prefect server, and start the same again: what is published stays",
                    transient=True,
                ) from error
            if not is_reported:
                tell(f"the Prefect API is away ({first_line(error)}); asking again for up to {seconds:.0f} s")
                is_reported = True
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            continue
        if is_reported:
            tell("the Prefect API is there again")
        return answer


def refusal_of(error: httpx.HTTPStatusError, subject: str) -> PlansmithError:
    """Return the error for a request that the API refused.

    Args:
        error: its answer.
        subject: it was asked for, such as "a run of compile-model".
    """
    answer = error.response.text
    if _TOO_MUCH in answer:
        problem = answer[answer.index(_TOO_MUCH) :].partition('"')[0].removeprefix("Flow run parameters ")
        return UsageError(
            f"the spec is too large for {subject}: its parameters {problem}",
            remedy="compile it without Prefect (plansmith compile), or raise PREFECT_SERVER_API_MAX_PARAMETER_SIZE on"
            " the server",
        )
    return EnvironmentFault(
        f"the Prefect API refuses {subject} with status {error.response.status_code}: {answer[:_MOST_WORDS]}",
        remedy="see the log of the Prefect server; `plansmith flows deploy` renews its deployments",
    )
