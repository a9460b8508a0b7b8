"""Query cache with ages: a stale result is refreshed when a page needs it, one query at a time."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from plansmith.errors import EnvironmentFault
from plansmith.records.model import Record
from plansmith.triggers.pages.query_results import ErrorDetail, detail_from_error

_MODULE = "plansmith.triggers.pages.queries"
_TIMEOUT_SECONDS = 120

_MOST_ENTRIES = 64
_MOST_PENDING = 8
Result = TypeVar("Result", bound=Record)
Query = Mapping[str, Any]


def run_query(query: Mapping[str, Any]) -> Any:
    """Run a query and return its result as JSON values (`queries.answer`); takes seconds.

    Raises:
        EnvironmentFault: there is none, and why.
    """
    command = [sys.executable, "-m", _MODULE, str(os.getpid())]
    try:
        done = subprocess.run(
            command, input=json.dumps(query).encode(), capture_output=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFault(
            f"it took longer than {_TIMEOUT_SECONDS} s and was given up",
            remedy="see whether its folders answer: plansmith status",
        ) from error
    if done.returncode:
        raise RuntimeError(f"{_MODULE} ended with {done.returncode}:\n{done.stderr.decode(errors='replace')}")
    answer = json.loads(done.stdout)
    if (detail := answer.get("error")) is not None:
        raise EnvironmentFault(detail["message"], remedy=detail["remedy"])
    return answer["result"]


@dataclass(frozen=True)
class CachedResult(Generic[Result]):
    """The cached result of a query, and the error of its last run.

    Attributes:
        result: None where there is none yet.
        age_seconds: of the result.
        error: of the last run, if that failed; the result is an older one's then.
        is_refreshing: a run goes on, and the next page will show its result.
    """

    result: Result | None
    age_seconds: float | None
    error: ErrorDetail | None
    is_refreshing: bool


@dataclass
class _Entry:
    """Cache entry: the last result of a query.

    Attributes:
        result: JSON values that were validated.
        result_at: when that was.
        error: of the last run.
        run_at: when the last run ended, whatever came of it.
        run: the one that goes on.
        used_at: when a page asked last.
    """

    result: Any = None
    result_at: float | None = None
    error: ErrorDetail | None = None
    run_at: float | None = None
    run: Future[None] | None = None
    used_at: float = field(default=0.0)


class QueryCache:
    """Query cache: runs queries and keeps their results.

    Args:
        execute: runs a query and returns JSON values, or raises; takes its time.
        wait_seconds: how long a page waits for a run before it shows the result of the one before.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        execute: Callable[[Query], Any] = run_query,
        *,
        wait_seconds: float = 8,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._execute = execute
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()
        self._turn = threading.Lock()

    async def get(self, kind: type[Result], query: Query, *, max_age_seconds: float) -> CachedResult[Result]:
        """Return the result of a query, cached or new.

        Args:
            kind: the record that the result is.
            query: as `execute` takes it.
            max_age_seconds: an older one is refreshed.
        """
        key = json.dumps(query, sort_keys=True)
        entry = self._refreshed(key, kind, query, max_age_seconds)
        if entry is None:
            busy = ErrorDetail(message="too many queries are pending", remedy="reload this page in a minute")
            return CachedResult(None, None, busy, is_refreshing=False)
        if (run := entry.run) is not None:
            await asyncio.wait({asyncio.wrap_future(run)}, timeout=self._wait_seconds)
        with self._lock:
            age = None if entry.result_at is None else self._clock() - entry.result_at
            return CachedResult(entry.result, age, entry.error, is_refreshing=entry.run is not None)

    def _refreshed(self, key: str, kind: type[Record], query: Query, max_age_seconds: float) -> _Entry | None:
        """Return the entry of a query, and start a run where it is stale; None where too many runs are pending."""
        with self._lock:
            now = self._clock()
            entry = self._entries.get(key)
            is_old = entry is None or entry.run_at is None or now - entry.run_at > max_age_seconds
            if is_old and (entry is None or entry.run is None):
                if sum(item.run is not None for item in self._entries.values()) >= _MOST_PENDING:
                    return entry
                entry = entry or self._entries.setdefault(key, _Entry())
                entry.run = Future()
                # It ends with the process, whatever it waits for, and what it started ends with it.
                threading.Thread(target=self._run, args=(entry, kind, query), name="query", daemon=True).start()
            assert entry is not None
            entry.used_at = now
            self._evict()
            return entry

    def _run(self, entry: _Entry, kind: type[Record], query: Query) -> None:
        result, detail = None, None
        with self._turn:
            try:
                result = kind.model_validate(self._execute(query))
            except Exception as error:  # noqa: BLE001 - whatever it is, pages wait for the end of the run
                detail = detail_from_error(error, query["about"])
        with self._lock:
            entry.run_at, entry.error, run = self._clock(), detail, entry.run
            if result is not None:
                entry.result, entry.result_at = result, entry.run_at
            entry.run = None
        assert run is not None
        run.set_result(None)

    def _evict(self) -> None:
        """Evict the least recently used entries without a pending run."""
        idle = sorted((entry.used_at, key) for key, entry in self._entries.items() if entry.run is None)
        for _, key in idle[: max(len(self._entries) - _MOST_ENTRIES, 0)]:
            del self._entries[key]
