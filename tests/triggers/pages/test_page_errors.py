"""An error is shown where it belongs, and the rest of the page stands."""

from __future__ import annotations

import sqlite3

import pytest

from plansmith.errors import EnvironmentFault
from plansmith.triggers.pages.cache import QueryCache
from plansmith.triggers.pages.routes import StatusPages
from plansmith.triggers.receiver.application import make_app

from ...support.triggers.inboxes import event
from .site import Site

ABSENT = {
    "/models/absent": "There is no model absent. The fleet lists all models.",
    "/models/": "There is no page /models/.",
    "/models/ranker/diff": "There is no such target of ranker",
    "/models/ranker/diff?of=KEY": "Two versions are compared. The page of ranker lists them.",
    "/models/ranker/diff?of=KEY&old=1&new=x": "Two versions are compared",
    "/models/ranker/diff?of=KEY&old=1&new=7": "ranker has no version 7. The page of ranker lists them.",
    "/models/ranker/diff?of=other&old=1&new=2": "There is no such target of ranker",
    "/models/ranker/diff/": "There is no page /models/ranker/diff/.",
}


@pytest.mark.parametrize("address", ABSENT)
def test_missing_page_shows_way_on(address: str, site: Site) -> None:
    """What is not there is a page with the way on."""
    site.model("ranker", versions=2)
    key = site.page("/models/ranker").all("section")[0]["id"]
    page = site.page(address.replace("KEY", key), 400 if "compared" in ABSENT[address] else 404)
    assert f"Not found {ABSENT[address]}" in page.text()
    assert "/" in {attributes["href"] for attributes in page.all("a")}


def test_damaged_manifest_spares_other_versions(site: Site) -> None:
    """A damaged manifest is shown and other versions stand."""
    release = site.model("ranker", versions=2)
    (release / "manifest.json").write_text("{")
    text = site.page("/models/ranker").text()
    assert "damaged manifest unknown unknown unknown" in text
    assert "Version 1 2026-01-01 00:00 from hf:tiny (random weights) passed" in text
    assert "damaged manifest" in site.page("/").text()
    key = site.page("/models/ranker").all("section")[0]["id"]
    refused = site.page(f"/models/ranker/diff?of={key}&old=1&new=2").text()
    assert "They cannot be compared:" in refused
    assert "manifest.json is damaged" in refused


def test_unreadable_history_spares_versions(site: Site) -> None:
    """A history that cannot be read is shown and versions stand."""
    site.model("ranker")
    site.compiled("ranker")
    site.history.file(2).mkdir()
    fleet = site.page("/").text()
    assert "local-cpu version 1" in fleet
    assert "passed unknown [Errno 21] Is a directory" in fleet
    text = site.page("/models/ranker").text()
    assert "The history cannot be read:" in text
    assert "000002.json: Is a directory" in text
    assert "Version 1 2026-01-01 00:00 from hf:tiny (random weights) passed" in text


def test_damaged_records_counted(site: Site) -> None:
    """Records that are damaged are counted and the others are shown."""
    site.model("ranker")
    site.compiled("ranker")
    site.history.file(2).write_text("{")
    text = site.page("/models/ranker").text()
    assert "published 1" in text
    assert "1 record of compiles cannot be read." in text


def test_foreign_repository_spares_other_models(site: Site) -> None:
    """A repository of another plansmith is shown and other models stand."""
    site.model("ranker")
    site.model("other", repository=str(site.place.folder / "elsewhere"))
    (site.place.folder / "elsewhere.plansmith" / "repository.json").write_text("[]")
    text = site.page("/").text()
    assert "other refused" in text
    assert "ranker fresh" in text
    assert "The repository cannot be read:" in site.page("/models/other").text()


def test_unreadable_inbox_shown_on_pages(site: Site) -> None:
    """An inbox that cannot be read is shown on both pages."""
    site.model("ranker")
    site.deliver(event("m"))
    with sqlite3.connect(site.place.folder / "inbox.db") as database:
        database.execute("DROP TABLE plansmith_entries")
    database.close()
    for address in ("/", "/inbox"):
        text = site.page(address).text()
        assert "The inbox cannot be read:" in text
    assert "ranker fresh" in site.page("/").text()


def test_unreadable_entry_named_with_command(site: Site) -> None:
    """An entry that cannot be read is named with what to type."""
    site.deliver(event("m"))
    with sqlite3.connect(site.place.folder / "inbox.db") as database:
        database.execute("UPDATE plansmith_entries SET event = '{'")
    database.close()
    text = site.page("/inbox").text()
    assert "entry 1 of" in text
    assert "plansmith triggers inbox drop 1 --yes" in text


def test_unqueryable_fleet_shown_as_before(site: Site) -> None:
    """A fleet that cannot be queried is shown as it was before."""
    assert site.config.triggers is not None
    seconds, fails = [0.0], [False]

    def execute(query: object) -> object:
        if fails[0]:
            raise EnvironmentFault("the disk is on fire", remedy="put it out")
        return {"models": []} if isinstance(query, dict) else None

    pages = StatusPages(site.config, site.inbox, QueryCache(execute, clock=lambda: seconds[0]))
    site.app = make_app(site.config.triggers, site.inbox, {}, pages=pages)
    fails[0] = True
    assert "The fleet cannot be checked: the disk is on fire Next: put it out" in site.page("/").text()
    assert "the disk is on fire" in site.page("/models/ranker", 503).text()
    fails[0], seconds[0] = False, 100
    assert "There is no model yet. Put a spec into" in site.page("/").text()
    fails[0], seconds[0] = True, 200
    text = site.page("/").text()
    assert "the disk is on fire" in text
    assert "There is no model yet" in text
    assert "Checked 2 min ago." in text
