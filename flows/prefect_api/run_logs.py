"""The log of a flow run while it grows: each line once, in the order of time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import Log

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


class LogReader:
    """Reads what is new in the log of a flow run.

    Args:
        read: asks the API.
        limit: how many lines a full page has.
    """

    def __init__(self, read: Page, limit: int = PAGE) -> None:
        self._read = read
        self._limit = limit
        self._newest: datetime | None = None
        self._seen: dict[UUID, datetime] = {}

    def read_new(self) -> list[Log]:
        """The lines that no call returned before, in the order of time.

        A line that reached the API later than younger ones of an earlier call comes late, but it comes.
        """
        found: dict[UUID, Log] = {}
        after = self._newest and self._newest - timedelta(seconds=LATE_SECONDS)
        offset = 0
        while page := self._read(after, offset):
            found |= {line.id: line for line in page if line.id not in self._seen}
            if len(page) < self._limit:
                break
            # On from the last moment and not by counting: a line that arrives meanwhile would move those behind it.
            last = page[-1].timestamp
            after, offset = last, offset + len(page) if last == after else 0
        # Not before all was read: what an API that goes away in between has given is asked for again.
        self._seen |= {line.id: line.timestamp for line in found.values()}
        if self._seen:
            self._newest = max(self._seen.values())
            oldest = self._newest - timedelta(seconds=LATE_SECONDS)
            self._seen = {line: moment for line, moment in self._seen.items() if moment >= oldest}
        return sorted(found.values(), key=lambda line: line.timestamp)


def is_worth_telling(line: Log) -> bool:
    """Whether a line says more than the one before it, or than how the run ended."""
    return not line.message.startswith(_SAID_BEFORE)


def text_of(line: Log) -> str:
    """What a line says, without the traceback: what was wrong is said before it, and the run's page has all."""
    return line.message.partition(_TRACEBACK)[0].rstrip()


def page_limit(client: SyncPrefectClient) -> int:
    """How much an API gives at once: what is asked for beyond that, it refuses."""
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
    """Reads the log of a run."""
    from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId, LogFilterTimestamp

    def read(after: datetime | None, offset: int) -> list[Log]:
        since: Any = after  # Prefect has a class of its own for what is a datetime
        wanted = LogFilter(
            flow_run_id=LogFilterFlowRunId(any_=[run]), timestamp=since and LogFilterTimestamp(after_=since)
        )
        return client.read_logs(wanted, limit=limit, offset=offset)

    return read
