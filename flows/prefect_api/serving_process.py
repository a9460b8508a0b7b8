"""The process that serves the flows on this machine, without which none of its runs goes on."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache, partial

from plansmith.errors import PlansmithError
from plansmith.flows.prefect_api.api import asking, require_api
from plansmith.system.process import end_with

_VARIABLE = "PLANSMITH_FLOWS_SERVED_BY"
_GRACE_SECONDS = 30.0


def be_serving_process() -> None:
    """Have the runs that this process starts from now on know it."""
    os.environ[_VARIABLE] = str(os.getpid())


@cache
def end_with_serving_process() -> None:
    """Have this run end, and say so, once the process that serves the flows has ended, however that came.

    The runs of a worker go on without it.
    """
    from prefect.runtime import flow_run

    serving = os.environ.get(_VARIABLE)
    if serving:
        end_with(int(serving), before=partial(_say_crashed, str(flow_run.id)), grace_seconds=_GRACE_SECONDS)


def _say_crashed(run: str) -> None:
    """What the serving process says of its runs where it can; an API that is away hears it from the run's silence."""
    from prefect.states import Crashed

    with suppress(PlansmithError), asking(require_api(), retries=0) as client:
        client.set_flow_run_state(run, Crashed(message="The process that serves the flows has ended."))
