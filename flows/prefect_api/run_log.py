"""A flow run's log, told of what happens often only now and then; its tables; and its end where it failed."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
from prefect.artifacts import create_table_artifact
from prefect.client.schemas.objects import State
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger
from prefect.states import Failed

from plansmith.errors import PlansmithError

_SAME_WORDS_SECONDS = 10
_FIGURES = re.compile(r"[\d.]+")
_ENGINE = "Engine execution exited with unexpected exception"


class RunLog:
    """The log of a run; make it inside of the flow, as threads of others know of no run."""

    def __init__(self) -> None:
        self._log = get_run_logger()
        self._told = ("", 0.0)

    def now_and_then(self, text: str) -> None:
        """Log what is being done; what differs in its figures only, such as a share that was read, now and then."""
        words, now = _FIGURES.sub("", text), time.monotonic()
        if text and (words != self._told[0] or now > self._told[1] + _SAME_WORDS_SECONDS):
            self._told = (words, now)
            self._log.info("%s", text)

    def say(self, text: str) -> None:
        """Log an event."""
        self._log.info("%s", text)

    def fail(self, error: PlansmithError) -> State[Any]:
        """Log what the run fails with: its state."""
        self._log.error("%s", error)
        return failed_with(error)

    def show(self, key: str, rows: Sequence[Mapping[str, str]], description: str) -> None:
        """Make a table; one that Prefect does not take is no reason to end a run."""
        try:
            create_table_artifact([dict(row) for row in rows], key=key, description=description)
        except (httpx.HTTPError, PrefectException) as error:
            self._log.warning("Prefect did not take the artifact %s: %s", key, error or type(error).__name__)


def failed_with(error: PlansmithError) -> State[Any]:
    """The state Failed of a run whose error its log has told; whoever waits for the run here gets it raised."""
    return failed_state(str(error), error)


def failed_state(message: str, data: Any) -> State[Any]:
    """The state Failed of a run whose log has said why, and which needs no traceback of Prefect's engine behind that.

    Args:
        message: what failed.
        data: what the run gives all the same.
    """
    logging.getLogger("prefect.flow_runs").addFilter(_is_news)
    return Failed(message=message, data=data)


def _is_news(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_ENGINE)
