"""Prefect's runner, made to outlive its server: it asks for due runs for as long as it lives."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Self

import httpx
from prefect.runner import Runner

from plansmith.errors import first_line
from plansmith.flows.prefect_api.patience import is_away


class PatientRunner(Runner):
    """A runner that a server which is away does not end.

    Prefect's own gives up after three questions without an answer (prefect/utilities/services.py,
    `critical_service_loop`), half a minute in which a server may well be started again; it leaves the runs that it has
    started to themselves then.

    Args:
        name: of the runner.
        tell: told once that the server is away, and once that it is there again.
    """

    def __init__(self, name: str, tell: Callable[[str], None]) -> None:
        super().__init__(name=name)
        self._tell = tell

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        # The runner has no public way to be told how patiently to ask for due runs, and, where it has lost the server's
        # events, for cancelled ones: without the second, what is cancelled would go on after an outage.
        for asks, name, tell in (
            (self._scheduled_run_poller, "_get_and_submit_flow_runs", self._tell),
            (self._cancelling_observer, "_check_for_cancelled_flow_runs", lambda _: None),
        ):
            setattr(asks, name, forgiving(getattr(asks, name), tell))
        return self

    def take_no_more(self) -> None:
        """Take up no further runs; those that go on do so. Before it has begun, there is nothing to do.

        The attribute `stopping` of the runner itself is looked at by nobody while it polls.
        """
        poller = getattr(self, "_scheduled_run_poller", None)
        if poller is not None:
            poller.stopping = True


def forgiving(ask: Callable[..., Any], tell: Callable[[str], None]) -> Callable[..., Any]:
    """A question to the server that has no answer, and no error, while the server is away.

    Args:
        ask: the question.
        tell: told once that the server is away, and once that it is there again.
    """
    away = False

    @wraps(ask)
    async def asked(*args: Any, **kwargs: Any) -> None:
        nonlocal away
        try:
            await ask(*args, **kwargs)
        except (httpx.HTTPError, RuntimeError) as error:
            if not is_away(error):
                raise
            if not away:
                away = True
                tell(f"the Prefect server is away ({first_line(error)}): nothing new is begun until it is there again")
            return
        if away:
            away = False
            tell("the Prefect server is there again")

    return asked
