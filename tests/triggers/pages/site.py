"""A service with a fleet, an inbox and its pages, in a folder of its own; its queries are real."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from plansmith.config.service import ServiceConfig
from plansmith.errors import EnvironmentFault
from plansmith.records.release import REPORT_FILE
from plansmith.steps.provenance.history import HISTORY, History, RunRecord
from plansmith.triggers.inbox.inbox import Inbox
from plansmith.triggers.pages import queries
from plansmith.triggers.pages.cache import QueryCache
from plansmith.triggers.pages.routes import StatusPages
from plansmith.triggers.receiver.application import make_app
from plansmith.triggers.registries.delivery import Event

from ...support.deliveries.asgi import Answer, ask
from ...support.faults.runs import run_record
from ...support.fleet import Place
from ...support.report.page import Page
from ...support.triggers.inboxes import Clock

HOSTILE = "<script>alert('\"&')</script>"
REGISTRIES: dict[str, Any] = {
    "ours": {"type": "mlflow", "tracking_uri": "https://mlflow.example.com", "secrets": ["env:A"]},
    "here": {"type": "folder", "path": "models"},
}


def service(folder: Path, **triggers: Any) -> ServiceConfig:
    """The file of the service, as it is read; `triggers` are more keys of that section."""
    rules = [{"registry": "ours", "model": "*", "when": "alias", "spec": "specs/ranker.yaml"}]
    return ServiceConfig.model_validate(
        {
            "name": "vision",
            "directory": str(folder),
            "specs": [str(folder / "specs")],
            "pools": {"first": {}},
            "triggers": {"registries": REGISTRIES, "rules": rules, **triggers},
        }
    )


def query_here(query: Mapping[str, Any]) -> Any:
    """The result of a query as its process would give it, from this one."""
    answer = json.loads(json.dumps(queries.answer(json.loads(json.dumps(query)))))
    if "error" in answer:
        raise EnvironmentFault(answer["error"]["message"], remedy=answer["error"]["remedy"])
    return answer["result"]


class Site:
    """The pages of a service; the process works in the folder.

    Args:
        folder: an empty one.
        inbox: where its deliveries are kept.
        clock: of the inbox.
    """

    def __init__(self, folder: Path, inbox: Inbox, clock: Clock) -> None:
        self.place = Place(folder)
        self.inbox, self.clock = inbox, clock
        self.history = History(folder / "artifacts" / HISTORY)
        self.queries: list[Mapping[str, Any]] = []
        self.seconds = 0.0
        self.config = service(folder)
        assert self.config.triggers is not None
        pages = StatusPages(self.config, inbox, QueryCache(self._query, clock=lambda: self.seconds), clock)
        self.app = make_app(self.config.triggers, inbox, {}, pages=pages)

    def _query(self, query: Mapping[str, Any]) -> Any:
        self.queries.append(query)
        return query_here(query)

    def model(self, name: str, versions: int = 1, **values: Any) -> Path:
        """A model with a spec and so many versions, the newest of which is fresh; the folder of its last release."""
        file = self.place.spec(name, **values)
        published = None
        for number in range(versions):
            published = self.place.publish(file, content=f"made {number}{'!' * number}")
            (Path(published.release) / REPORT_FILE).write_text(f"<!DOCTYPE html><title>{name} {number + 1}</title>")
        return Path(published.release) if published else file

    def compiled(self, model: str, **changes: Any) -> RunRecord:
        """Note a compile."""
        run = run_record(model, failed=changes.pop("failed", False)).model_copy(update=changes)
        self.history.add(run)
        return run

    def deliver(self, event: Event, delivery: str = "") -> None:
        """Put an event of a registry into the inbox."""
        self.inbox.take(event.registry, delivery or f"{event.model}-{event.version}", [event])

    def later(self) -> None:
        """Let so much time pass that all results are too old."""
        self.seconds += 10_000

    def ask(self, address: str, method: str = "GET", **more: Any) -> Answer:
        """The answer to a request; the path is percent-decoded, as the server does."""
        path, _, query = address.partition("?")
        headers = {"host": "127.0.0.1:8420"} | more.pop("headers", {})
        return asyncio.run(ask(self.app, method, unquote(path), query=query, headers=headers, **more))

    def page(self, address: str, status: int = 200) -> Page:
        """A page, read as a browser reads it; its markup is whole."""
        answer = self.ask(address)
        assert answer.status == status, answer
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        page = Page(answer.body.decode())
        assert not page.unbalanced, page.unbalanced
        return page


def links(page: Page) -> list[str]:
    """The URLs that a page links to."""
    return [attributes["href"] for attributes in page.all("a")]


def link(page: Page, part: str) -> str:
    """The first URL on a page with this in it."""
    return next(url for url in links(page) if part in url)
