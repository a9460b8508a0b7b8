"""Run log of a flow: rate-limited log lines, tables, and the failure of the run."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import httpx
from prefect.artifacts import create_table_artifact
from prefect.client.schemas.objects import State
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger
from prefect.states import Failed

from plansmith.errors import PlansmithError

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import Log


_SAME_WORDS_SECONDS = 10
_FIGURES = re.compile(r"[\d.]+")
_ENGINE = "Engine execution exited with unexpected exception"

PAGE = 200
"""How much the API gives at once, unless its server is set to give less."""

# Lines reach the API in batches, those of a run's worker and of the run itself by different ways.
LATE_SECONDS = 60
# Prefect's words for the end of a step, which the line before tells with its time or its failure, and of a run.
_SAID_BEFORE = "Finished in state "
_TRACEBACK = "\nTraceback (most recent call last)"
_TOO_MANY = 422
Page = Callable[["datetime | None", int], "list[Log]"]
"""Reads a page of lines in the order of time: those of a moment and later (all where it is None), without the first n
of these."""


class RunLog:
    """Log of a run; create it inside the flow, as other threads have no run context."""

    def __init__(self) -> None:
        self._log = get_run_logger()
        self._last_line = ("", 0.0)

    def now_and_then(self, text: str) -> None:
        """Log an activity, rate-limited if only its numbers change, such as a percentage."""
        template, now = _FIGURES.sub("", text), time.monotonic()
        if text and (template != self._last_line[0] or now > self._last_line[1] + _SAME_WORDS_SECONDS):
            self._last_line = (template, now)
            self._log.info("%s", text)

    def say(self, text: str) -> None:
        """Log an event."""
        self._log.info("%s", text)

    def fail(self, error: PlansmithError) -> State[Any]:
        """Log the error that a run fails with, and return its state."""
        self._log.error("%s", error)
        return failed_with(error)

    def show(self, key: str, rows: Sequence[Mapping[str, str]], description: str) -> None:
        """Create a table artifact; if Prefect refuses it, the run continues."""
        try:
            create_table_artifact([dict(row) for row in rows], key=key, description=description)
        except (httpx.HTTPError, PrefectException) as error:
            self._log.warning("Prefect did not take the artifact %s: %s", key, error or type(error).__name__)


def failed_with(error: PlansmithError) -> State[Any]:
    """Return the Failed state of a run whose error is logged already; a local caller gets it raised."""
    return failed_state(str(error), error)


def failed_state(message: str, data: Any) -> State[Any]:
    """Return the Failed state of a run whose reason is logged already, without a traceback of Prefect's engine.

    Args:
        message: what failed.
        data: what the run gives all the same.
    """
    logging.getLogger("prefect.flow_runs").addFilter(_is_news)
    return Failed(message=message, data=data)


def _is_news(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_ENGINE)


class LogReader:
    """Log reader: reads new lines in the log of a flow run.

    Args:
        read: asks the API.
        limit: how many lines a full page has.
    """

    def __init__(self, read: Page, limit: int = PAGE) -> None:
        self._read = read
        self._limit = limit
        self._newest: datetime | None = None
        self._line_times: dict[UUID, datetime] = {}

    def read_new(self) -> list[Log]:
        """Return the lines that no earlier call returned, in chronological order.

        A line that reached the API later than younger ones of an earlier call comes late, but it comes.
        """
        lines_by_id: dict[UUID, Log] = {}
        after = self._newest and self._newest - timedelta(seconds=LATE_SECONDS)
        offset = 0
        while page := self._read(after, offset):
            lines_by_id |= {line.id: line for line in page if line.id not in self._line_times}
            if len(page) < self._limit:
                break
            # On from the last moment and not by counting: a line that arrives meanwhile would move those behind it.
            last = page[-1].timestamp
            after, offset = last, offset + len(page) if last == after else 0
        # Not before all was read: what an API that goes away in between has given is asked for again.
        self._line_times |= {line.id: line.timestamp for line in lines_by_id.values()}
        if self._line_times:
            self._newest = max(self._line_times.values())
            oldest = self._newest - timedelta(seconds=LATE_SECONDS)
            self._line_times = {line: moment for line, moment in self._line_times.items() if moment >= oldest}
        return sorted(lines_by_id.values(), key=lambda line: line.timestamp)


def is_worth_telling(line: Log) -> bool:
    """Whether a log line adds information to the previous one and to the run's final state."""
    return not line.message.startswith(_SAID_BEFORE)


def text_of(line: Log) -> str:
    """Return a log line without its traceback: the error is logged before it, and the run's page has all of it."""
    return line.message.partition(_TRACEBACK)[0].rstrip()


def page_limit(client: SyncPrefectClient) -> int:
    """Return the API's page size limit, above which it refuses requests."""
    from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
    from prefect.exceptions import PrefectHTTPStatusError

    limit = PAGE
    while limit > 1:
        try:
            client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[])), limit=limit)
        except PrefectHTTPStatusError as error:
            if error.response.status_code != _TOO_MANY:
                raise
            limit //= 2
        else:
            break
    return limit


def page_of(client: SyncPrefectClient, run: UUID, limit: int = PAGE) -> Page:
    """Return a function that reads pages of a run's log."""
    from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId, LogFilterTimestamp

    def read(after: datetime | None, offset: int) -> list[Log]:
        since: Any = after  # Prefect has a class of its own for what is a datetime
        log_filter = LogFilter(
            flow_run_id=LogFilterFlowRunId(any_=[run]), timestamp=since and LogFilterTimestamp(after_=since)
        )
        return client.read_logs(log_filter, limit=limit, offset=offset)

    return read
