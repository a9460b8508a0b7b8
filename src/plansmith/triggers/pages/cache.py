"""Results of queries, cached with their age: one that is old is refreshed when a page asks, one query at a time."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from plansmith.records.model import Record
from plansmith.triggers.pages.error_details import detail_from_error
from plansmith.triggers.pages.query_process import run_query
from plansmith.triggers.pages.query_results import ErrorDetail

_MOST_ENTRIES = 64
_MOST_PENDING = 8

Result = TypeVar("Result", bound=Record)
Query = Mapping[str, Any]


@dataclass(frozen=True)
class CachedResult(Generic[Result]):
    """The last result of a query, and how its last run ended.

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
    """The last result of a query.

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
    """Runs queries, and keeps their results.

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
        """The result of a query, cached or new.

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
        """The entry of a query, with a run begun where it is old; None where too many are pending already."""
        with self._lock:
            now = self._clock()
            entry = self._entries.get(key)
            is_old = entry is None or entry.run_at is None or now - entry.run_at > max_age_seconds
            if is_old and (entry is None or entry.run is None):
                if sum(one.run is not None for one in self._entries.values()) >= _MOST_PENDING:
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
        """Forget what no page has asked for longest, and no run goes on for."""
        idle = sorted((one.used_at, key) for key, one in self._entries.items() if one.run is None)
        for _, key in idle[: max(len(self._entries) - _MOST_ENTRIES, 0)]:
            del self._entries[key]
