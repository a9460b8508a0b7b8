"""Results of queries are cached with their age, one query runs at a time, and no page waits long."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from plansmith.errors import EnvironmentFault
from plansmith.triggers.pages.cache import CachedResult, QueryCache, run_query
from plansmith.triggers.pages.query_results import ErrorDetail, FleetResult

from ...support.triggers.inboxes import event
from .site import Site

QUERY = {"about": "fleet", "specs": ["specs"]}
MAX_AGE_SECONDS = 60.0
PATIENCE_SECONDS = 120


class CountedQueries:
    """A cache of queries that are counted, and that go on when `proceed` is set."""

    def __init__(self, *, wait_seconds: float = PATIENCE_SECONDS) -> None:
        self.count = 0
        self.now = 0.0
        self.error: Exception | None = None
        self.proceed = threading.Event()
        self.proceed.set()
        self.running = self.most_running = 0
        self.cache = QueryCache(self._execute, wait_seconds=wait_seconds, clock=lambda: self.now)

    def _execute(self, _query: Mapping[str, Any]) -> Any:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        assert self.proceed.wait(PATIENCE_SECONDS)
        self.running -= 1
        self.count += 1
        if self.error is not None:
            raise self.error
        return {"models": [], "notices": [f"run {self.count}"]}

    def get(self, **more: Any) -> CachedResult[FleetResult]:
        return asyncio.run(self.cache.get(FleetResult, QUERY | more, max_age_seconds=MAX_AGE_SECONDS))


def _run_of(cached: CachedResult[FleetResult]) -> str:
    assert cached.result is not None
    return cached.result.notices[0]


def test_result_cached_with_age() -> None:
    """A result is cached for a while with its age."""
    queries = CountedQueries()
    assert (_run_of(queries.get()), queries.count) == ("run 1", 1)
    queries.now = MAX_AGE_SECONDS
    cached = queries.get()
    assert (_run_of(cached), cached.age_seconds, queries.count) == ("run 1", MAX_AGE_SECONDS, 1)
    queries.now = MAX_AGE_SECONDS + 1
    cached = queries.get()
    assert (_run_of(cached), cached.age_seconds, queries.count) == ("run 2", 0, 2)


def test_slow_page_shows_previous_result() -> None:
    """A page that would wait long shows the previous result."""
    queries = CountedQueries()
    assert _run_of(queries.get()) == "run 1"
    queries.now = 100
    queries.proceed.clear()
    queries.cache._wait_seconds = 0.05
    cached = queries.get()
    assert (_run_of(cached), cached.age_seconds, cached.is_refreshing) == ("run 1", 100, True)
    queries.proceed.set()
    queries.cache._wait_seconds = PATIENCE_SECONDS
    assert _run_of(queries.get()) == "run 2"


def test_first_page_waits_bounded() -> None:
    """The first page does not wait forever."""
    queries = CountedQueries(wait_seconds=0.05)
    queries.proceed.clear()
    assert queries.get() == CachedResult(None, None, None, is_refreshing=True)
    queries.proceed.set()


def test_pages_share_one_query() -> None:
    """Many pages at once share one query."""
    queries = CountedQueries()

    async def crowd() -> list[CachedResult[FleetResult]]:
        pages = [queries.cache.get(FleetResult, QUERY, max_age_seconds=MAX_AGE_SECONDS) for _ in range(50)]
        return await asyncio.gather(*pages)

    assert {_run_of(cached) for cached in asyncio.run(crowd())} == {"run 1"}
    assert queries.count == 1


def test_queries_run_one_at_time() -> None:
    """One query runs at a time, and few wait for their turn."""
    queries = CountedQueries()

    async def crowd() -> list[CachedResult[FleetResult]]:
        queries.proceed.clear()
        each = [QUERY | {"specs": [str(number)]} for number in range(30)]
        pages = [
            asyncio.create_task(queries.cache.get(FleetResult, query, max_age_seconds=MAX_AGE_SECONDS))
            for query in each
        ]
        await asyncio.wait(pages, return_when=asyncio.FIRST_COMPLETED)
        queries.proceed.set()
        return await asyncio.gather(*pages)

    results = asyncio.run(crowd())
    refused = [entry for entry in results if entry.result is None]
    assert {entry.error.message for entry in refused if entry.error} == {"too many queries are pending"}
    assert 0 < len(results) - len(refused) <= 10
    assert queries.most_running == 1


def test_unasked_results_forgotten() -> None:
    """What no page asks for is forgotten."""
    queries = CountedQueries()
    for number in range(200):
        queries.now += 1
        queries.get(specs=[str(number)])
    assert queries.count == 200
    queries.get(specs=["199"])
    assert queries.count == 200
    queries.get(specs=["0"])
    assert queries.count == 201


def test_error_shown_with_previous_result() -> None:
    """An error is shown with the previous result, and the query is run again."""
    queries = CountedQueries()
    queries.get()
    queries.now, queries.error = 100, EnvironmentFault("away", remedy="wait")
    cached = queries.get()
    assert cached.error == ErrorDetail(message="away", remedy="wait")
    assert (_run_of(cached), cached.age_seconds) == ("run 1", 100)
    queries.now, queries.error = 200, None
    assert (_run_of(queries.get()), queries.count) == ("run 3", 3)


def test_bug_logged_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    """A bug is logged and no page shows it."""
    queries = CountedQueries()
    queries.error = ValueError("secret inner thing")
    with caplog.at_level(logging.ERROR, "plansmith.pages"):
        cached = queries.get()
    assert cached.error is not None
    assert cached.error.message == "a bug of plansmith's own"
    (line,) = [json.loads(record.getMessage()) for record in caplog.records if record.name == "plansmith.pages"]
    assert (line["event"], line["about"], line["reason"]) == ("page", "fleet", "ValueError: secret inner thing")


@pytest.mark.slow
def test_query_process_finds_same(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of a query finds what this one would."""
    site.model("ranker", versions=2)
    site.deliver(event("m"))
    text = site.page("/models/ranker").text()
    monkeypatch.setattr(site, "_query", run_query)
    site.later()
    assert site.page("/models/ranker").text() == text
    report = run_query({"about": "fleet", "specs": [str(site.place.specs)]})
    assert [row["status"]["model"] for row in report["models"]] == ["ranker"]


@pytest.mark.slow
def test_query_process_tells_errors(tmp_path: Path) -> None:
    """The process of a query says what is wrong."""
    query = {"about": "differences", "repository": str(tmp_path / "none"), "model": "m", "old": 1, "new": 2}
    with pytest.raises(EnvironmentFault, match="is no release: it has no manifest") as refused:
        run_query(query)
    assert refused.value.remedy == "name a release folder"
    with pytest.raises(RuntimeError, match="TypeError"):
        run_query({"about": "fleet", "places": []})
