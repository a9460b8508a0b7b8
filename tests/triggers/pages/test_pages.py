"""What the pages show of a fleet, a model and the inbox, and how they are made."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest

from plansmith.steps.provenance.history import Failure
from plansmith.triggers.inbox.entry import StartedRun, WriteBack
from plansmith.triggers.registries.event import Event

from ...support.faults.packages import source_model
from ...support.report.page import Page
from ...support.triggers.inboxes import event
from .site import HOSTILE, Site, link, links

ADDRESSES = ("/", "/inbox", "/models/ranker", "/nowhere")


def test_a_fleet_without_models_says_what_to_do_first(site: Site) -> None:
    text = site.page("/").words()
    assert "holds no spec" in text
    assert "Next: put one there (.yaml or .yml), or name another folder" in text


def test_every_model_stands_with_its_version_its_state_and_its_last_compile(site: Site) -> None:
    site.model("ranker", versions=2)
    site.model("ajar", versions=0)
    site.compiled("ranker", version=2)
    site.compiled("ajar", failed=True)
    page = site.page("/")
    text = page.words()
    assert "2 all" in text
    assert "1 stale" in text
    assert "1 fresh" in text
    assert re.search(r"ajar stale there is no version of it yet local-cpu none – failed in validate 2026-11-20", text)
    assert "ranker fresh nothing changed local-cpu version 2 2026-01-01 00:00 , fp32 hf:tiny" in text
    assert "hf:tiny (random weights) passed published" in text
    assert text.index("ajar") < text.index("ranker")  # what wants somebody's eye comes first
    assert {"/models/ajar", "/models/ranker"} < set(links(page))


def test_a_fleet_is_shown_by_state(site: Site) -> None:
    site.model("ranker")
    site.model("ajar", versions=0)
    stale = site.page("/?state=stale")
    assert "/models/ajar" in links(stale)
    assert "/models/ranker" not in links(stale)
    assert "No model is refused." in site.page("/?state=refused").words()
    assert "/models/ranker" in links(site.page("/?state=%3Cb%3E"))


def test_a_long_fleet_is_shown_in_parts(site: Site) -> None:
    for number in range(450):
        site.place.spec(f"model-{number:03}", source="onnx:gone.onnx")
    first = site.page("/")
    assert "450 refused" in first.words()
    assert len(first.all("tr")) == 201
    assert "1–200 201–400 401–450" in first.words()
    assert {"/?page=2", "/?page=3"} < {found["href"] for found in first.all("a")}
    last = site.page("/?state=refused&page=3")
    assert len(last.all("tr")) == 51
    assert "/models/model-449" in {found["href"] for found in last.all("a")}
    assert "There are no more models." in site.page("/?page=4").words()
    assert len(site.page("/?page=0").all("tr")) == len(site.page("/?page=x").all("tr")) == 201


def test_a_spec_that_cannot_be_read_stands_in_the_fleet_with_the_way_out(site: Site) -> None:
    site.place.write("typo.yaml", {"source": "hf:a/b", "precison": "int8"})
    text = site.page("/").words()
    assert "specs/typo.yaml refused 1 problem(s) in the spec: unknown key(s)" in text
    assert "Next: mend these and run it again" in text


def test_a_model_has_its_versions_and_its_compiles_the_newest_first(site: Site) -> None:
    site.model("ranker", versions=3)
    site.compiled("ranker", started="2026-11-20T13:05:00+00:00")
    site.compiled("ranker", started="2026-11-21T13:05:00+00:00", failed=True)
    site.compiled("other")
    page = site.page("/models/ranker")
    text = page.words()
    assert re.search(r"Version 3 .* served .* since 2 Version 2 .* shown .* since 1 Version 1 ", text)
    assert text.index("2026-11-21 13:05 failed in validate logits differ much") < text.index("2026-11-20 13:05 publish")
    assert "other" not in text
    assert [found.get("name") for found in page.all("select")] == ["old", "new"]


def test_it_is_told_which_version_of_a_registry_each_version_was_made_from(site: Site) -> None:
    file = site.place.spec("ranker")
    for number in (3, 4):
        registered = source_model(scheme="hf", location="/c", registered="mlflow:models:/ranker", revision=str(number))
        site.place.publish(file, content=f"of version {number}{'!' * number}", source=registered)
    assert ", fp32 mlflow:models:/ranker/4 passed" in site.page("/").words()
    text = site.page("/models/ranker").words()
    assert "Published version 2 made from mlflow:models:/ranker/4 " in text
    assert re.search(
        r"Version 2 \S+ \S+ from mlflow:models:/ranker/4 .*Version 1 \S+ \S+ from mlflow:models:/ranker/3 ", text
    )


def test_a_damaged_manifest_says_nothing_of_its_source(site: Site) -> None:
    (site.model("ranker") / "manifest.json").write_text("{}")
    assert "damaged manifest" in site.page("/").words()
    assert "Version 1 damaged manifest unknown unknown" in site.page("/models/ranker").words()


def test_a_withdrawn_version_says_why_it_is_not_shown(site: Site) -> None:
    site.model("ranker", versions=2)
    site.place.repository.withdraw("ranker", 2, "answers wrongly on Tuesdays")
    assert "not shown withdrawn: answers wrongly on Tuesdays" in site.page("/models/ranker").words()
    assert "ranker fresh nothing changed local-cpu version 1" in site.page("/").words()


def test_two_versions_are_compared(site: Site) -> None:
    site.model("ranker", versions=3)
    page = site.page(link(site.page("/models/ranker"), "old=2&new=3"))
    text = page.words()
    assert "What changed in version 3 of ranker for local-cpu since version 2." in text
    assert "-config.pbtxt of made 1" in text
    assert "+config.pbtxt of made 2" in text
    assert "The same in both: interface, " in text
    assert "Report on version 2 Report on version 3" in text
    assert len(page.all("ins")) == len(page.all("del")) == 1
    same = site.page(link(site.page("/models/ranker"), "old=2&new=3").replace("old=2", "old=3")).words()
    assert "Nothing differs." in same


def test_an_empty_inbox_says_where_deliveries_go(site: Site) -> None:
    text = site.page("/inbox").words()
    assert "No event has arrived yet. Have registries send their deliveries to /hooks/ours at this address" in text


def test_the_inbox_tells_what_became_of_each_entry(site: Site) -> None:
    for number in range(1, 5):
        site.deliver(event(f"m{number}"))
        site.clock.go(minutes=1)
    claimed = [site.inbox.claim("w", site.clock.now, 60) for _ in range(3)]
    first, second, third = (one for one in claimed if one is not None)
    runs = [StartedRun(id="0b6a1c9e-7a57", address="https://prefect.example.com/runs/1"), StartedRun(id="odd-run")]
    site.inbox.finish(first, runs)
    site.inbox.set_aside(second, "no such spec\nNext: mend it")
    site.inbox.postpone(third, "Prefect is away", site.clock.now + timedelta(minutes=5))
    page = site.page("/inbox")
    text = page.words()
    assert "4 all 2 waiting 0 in work 1 done 1 set aside" in text
    assert re.search(r"Entry 4 m4 .* waiting .*Entry 3 m3 .*waiting Prefect is away 1 attempt, again at", text)
    assert "set aside no such spec Next: mend it 1 attempt Next: plansmith triggers inbox retry 2" in text
    assert "The oldest waiting entry is 2 min old." in text
    assert "https://prefect.example.com/runs/1" in links(page)
    assert "odd-run" in text
    assert "m1" not in site.page("/inbox?state=set-aside").words()
    assert "1 entry of the inbox is set aside" in site.page("/").words()
    assert "no rule matches it" not in text
    last = site.inbox.claim("w", site.clock.now, 60)
    assert last is not None
    site.inbox.finish(last, [])
    assert re.search(r"Entry 4 m4 .* unwanted no rule matches it", site.page("/inbox").words())


def marks(page: Page) -> list[str]:
    """What stands for states in the tables of a page."""
    return [found["class"] for found in page.all("svg")]


def test_an_entry_shows_what_was_written_back_to_the_registry(site: Site) -> None:
    site.deliver(event("m"))
    entry = site.inbox.claim("w", site.clock.now, 60)
    assert entry is not None
    site.inbox.finish(entry, [StartedRun(id="run-1")])
    page = site.page("/inbox")
    assert "version 1, alias champion started 2026" in page.words()
    assert "mark good" not in marks(page)

    def after(end: Callable[[WriteBack], object]) -> tuple[str, str]:
        """The text on the write-back, and the icon beside it."""
        site.inbox.write_backs.again(1)
        one = site.inbox.write_backs.claim("t", site.clock.now, 60)
        assert one is not None
        end(one)
        page = site.page("/inbox")
        found = re.search(r"started (the registry .*?)20\d\d-[\d -]+:\d\d mlflow", page.words())
        assert found is not None, page.words()
        return found[1].strip(), marks(page)[-1]

    write_backs, now = site.inbox.write_backs, site.clock.now
    for verdict, mark in {"published": "good", "refused": "bad", "failed": "bad", "cancelled": "quiet"}.items():
        text = after(lambda one, verdict=verdict: write_backs.finish(one, verdict))  # type: ignore[misc]
        assert text == (f"the registry was told: {verdict} (2026-11-20 12:00)", f"mark {mark}")
    text = after(lambda one: write_backs.postpone(one, "its runs go on", now, failed=False))
    assert text == ("the registry is not told yet: its runs go on", "mark quiet")
    assert after(lambda _: None) == ("the registry is being told", "mark busy")
    site.clock.go(minutes=2)
    text = after(lambda one: write_backs.set_aside(one, HOSTILE))
    told = f"the registry was not told: {HOSTILE} (1 attempt) Next: plansmith triggers inbox write-back 1"
    assert text == (told, "mark bad")
    assert (
        "1 result could not be written back to the registry: plansmith triggers inbox list --not-written-back"
        in site.page("/inbox").words()
    )


def test_an_address_that_is_no_link_of_the_web_becomes_none(site: Site) -> None:
    site.deliver(event("m"))
    entry = site.inbox.claim("w", site.clock.now, 60)
    assert entry is not None
    addresses = ("javascript:alert(1)", "data:text/html,x", "//elsewhere.example.com", "http://[", "http://")
    site.inbox.finish(entry, [StartedRun(id=f"run{n}", address=one) for n, one in enumerate(addresses)])
    page = site.page("/inbox")
    assert all(found.startswith(("/", "#")) for found in links(page))
    assert "run4" in page.words()


def test_whatever_names_hold_is_text(site: Site) -> None:
    site.deliver(Event(registry="ours", model=HOSTILE, version=HOSTILE, change="alias", value=HOSTILE, source=HOSTILE))
    entry = site.inbox.claim("w", site.clock.now, 60)
    assert entry is not None
    site.inbox.set_aside(entry, HOSTILE)
    name = HOSTILE.replace("/", "")
    site.model("ranker", versions=2)
    releases = site.place.repository.store / "releases"
    (releases / "ranker").rename(releases / name)
    failure = Failure(step=HOSTILE, error="E", message=HOSTILE, exit_code=3)
    site.compiled(name, source=HOSTILE, revision=HOSTILE, failure=failure, started=HOSTILE, target="local-cpu")
    model = link(site.page("/"), "%3Cscript")
    for address in ("/inbox", "/", model, f"/{HOSTILE}", f"/models/{name}x", link(site.page(model), "/diff")):
        text = site.ask(address).body.decode()
        assert not re.search(r"<script|onerror=", text), address
        assert "alert(" in text, address
    assert name in site.page(model).words()


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_page_may_run_nothing_and_be_kept_by_nobody(address: str, site: Site) -> None:
    site.model("ranker")
    headers = site.ask(address).headers
    policy = dict(part.strip().partition(" ")[::2] for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["style-src"] == policy["form-action"] == "'self'"
    assert not [name for name in policy if name.startswith(("script", "connect"))]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_page_says_what_its_parts_are(address: str, site: Site) -> None:
    site.model("ranker", versions=3)
    site.compiled("ranker")
    site.deliver(event("m"))
    page = site.page(address, 404 if address == "/nowhere" else 200)
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("main")) == len(page.all("h1")) == len(page.all("header")) == len(page.all("footer")) == 1
    assert page.all("a")[0] == {"class": "skip", "href": "#content"}
    assert page.all("main")[0]["id"] == "content"
    assert all(found.get("aria-label") for found in page.all("nav"))
    heads = page.all("th")
    assert all(found["scope"] in {"col", "row"} for found in heads)
    assert len(page.all("caption")) == len(page.all("table"))
    assert not page.all("script")
    assert not [found for _, found in page.elements if "style" in found or any(name.startswith("on") for name in found)]
    ids = [found["id"] for _, found in page.elements if "id" in found]
    assert len(ids) == len(set(ids))
    assert {found["for"] for found in page.all("label")} <= set(ids)
    assert all(found.get("aria-hidden") == "true" for found in page.all("svg"))
    refresh = [found for found in page.all("meta") if "http-equiv" in found]
    assert not refresh


def test_the_style_is_one_file_that_may_be_kept(site: Site) -> None:
    (address,) = (found["href"] for found in site.page("/").all("link") if found["rel"] == "stylesheet")
    answer = site.ask(address)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/css")
    assert "immutable" in answer.headers["cache-control"]
    assert b"prefers-color-scheme: dark" in answer.body
    assert b".skip:focus" in answer.body


def test_pages_are_read_and_nothing_else(site: Site) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert site.ask("/", method).status == site.ask("/inbox", method).status == 405
    assert site.ask("/", "HEAD").status == 200


def test_hooks_answer_as_they_do_without_pages(site: Site) -> None:
    assert site.ask("/hooks/ours", "GET").status == 405
    for method in ("GET", "POST"):
        answer = site.ask("/hooks/theirs/", method)
        assert (answer.status, answer.body) == (404, b"Not Found")
    assert site.ask("/hooks/theirs", "POST").body == b""
